"""Small models of the real architectures, trained here and cached by the hash of their whole recipe.

recipes, specdec        which models there are at each scale; their numbers stand in TOML files beside them
descriptions, families  the fields of a recipe and of a corpus; facts about kinds of networks
cache                   where trained models are
corpus, speech, distil  the data of a training: text, recordings, what a teacher wrote
networks, state, loop   fresh networks; optimizers and checkpoints; the one training loop
text, drafters, early_heads, whisper  what each kind of model learns
build                   trains what the cache lacks
"""
