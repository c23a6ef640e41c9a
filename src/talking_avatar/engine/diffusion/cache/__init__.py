"""The cache of keys and values: `ring` decides where, in integers; `kv` holds, in tensors."""
