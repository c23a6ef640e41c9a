"""Weights: where a model's tensors come from, and how each rank gets its own part.

A checkpoint is a folder (docs/checkpoints.md):

    config.json     format, precision, and the model's configuration
    dit/            the DiT's tensors, named as in `talking_avatar.engine.diffusion.layout`
    codec/          the video codec's: encoder.…, decoder.…

Rooms: `checkpoint` opens one (or draws random weights), `rank_part` gives a rank its parameters,
`codec` builds encoder and decoder, `quantize` saves the FP8 form, `wan_import` converts diffusers'
Wan2.2-TI2V-5B. Below them `source` is the seam, `shards` and `random_source` its two kinds,
`shard_writer` the way back to disk. safetensors only, never pickle.
"""
