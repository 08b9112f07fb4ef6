"""From the name of a model (zoo, pocket, folder, GGUF file, Hub) to a loaded one, and back to what the name means."""
