"""Built-in models and losses, and building modules by name.

`built_in`: the built-in models by name, with the options of each
`building`: builds modules by name: a built-in one or the user's own
`user_code`: turns an exception in a user's module or loss into an error that says where
`losses`: losses with one value per row, and what a model's output predicts under each
`fit_labels`: compares labels with a loss, and fits how they are mapped
`tower`: the paper's bottom: embeddings of ids, concatenated with numbers, then linear layers
`tops`: the paper's two top models, WDL and DSSM
`residual`: residual networks for tables: a bottom and a top of one family
`number_embedding`: numbers as vectors, piecewise linear between quantiles
`recurring_values`: numbers that name something: a vector for each value that recurs
`members`: predictions of several members of one model, each trained on its own loss
`clipped`: a bottom whose Z is clipped, as `privacy.z_noise` asks for
`gpu_embedding`: rows of an embedding table on a GPU, as a Triton kernel
`numpy_forward`: the built-in models as NumPy functions, for a few rows at a time
"""
