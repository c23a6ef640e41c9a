"""Weights: where a model's tensors come from, and how each rank gets its own part.

A checkpoint is a folder (docs/checkpoints.md):

    config.json     format, precision, and the model's configuration
    dit/            the DiT's tensors, named as in `talking_avatar.engine.diffusion.layout`
    codec/          the video codec's: encoder.…, decoder.…

Rooms: `checkpoint` opens one (or draws random weights), `rank_part` fills a rank's tensors, `codec`
builds encoder and decoder, `save` writes one in any precision, `wan_import` reads diffusers'
Wan2.2-TI2V-5B as if it were one, `commands` is what the command line does with whole folders.
Below them `source` is the seam, `shards`, `random_source` and `wan_import` its kinds, and
`shard_writer` the way back to disk. safetensors only, never pickle.
"""
