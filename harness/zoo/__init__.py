"""Small models of the real architectures, trained here and cached by the hash of their whole recipe.

``recipes`` says what there is, ``build`` trains what the cache lacks, ``cache`` knows where models are.
"""
