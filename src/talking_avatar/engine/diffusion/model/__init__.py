"""The video DiT: tokens in, a prediction per patch out; reads as if written for one device.

Names and shapes of its tensors, in a checkpoint and on a rank: see
`talking_avatar.engine.diffusion.layout`, whose docstring is the list and whose `tensor_specs` is
the same list as values. A rank's parameter of that name has `TensorSpec.parameter_shape(tp)`.

Layouts: x [tokens, hidden]; q, k, v of a chunk [tokens, heads, head_dim]; the cache as in
`talking_avatar.engine.diffusion.cache.kv`. Rotary pairs are neighbors: (0, 1), (2, 3)...; the
first `rope_dims[0]` channels of a head turn with time, the next with y, the last with x.
"""
