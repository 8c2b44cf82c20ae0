"""Z and dZ as fewer bytes: one small class a codec, named in the contract."""
