"""Codecs that compress Z and dZ: one small class each, selected by name in the contract.

`codec`: the interface: encode Z or dZ into fewer bytes, and decode them
`registry`: the codecs by their names in the contract
`casts`: float32 unchanged, bfloat16, or float16 with a scale
`quantizers`: rounding to evenly spaced levels between the min and max of a row
`gpu_quantizers`: the arithmetic of the quantizers on a GPU, as Triton kernels
`zstd`: lossless compression on top of another codec
"""
