"""Latents to pictures, and the photo to its latent.

`base` is the seam, `config` its numbers (free of torch), `codec` the Wan2.2-class autoencoder
behind it. Import from those: this file loads nothing.
"""
