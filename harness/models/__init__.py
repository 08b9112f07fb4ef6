"""From the name of a model (zoo, folder, Hub) to a loaded one, and back to what the name means."""
