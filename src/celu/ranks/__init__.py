"""A party that computes every batch in slices: on several ranks of torchrun, or in one process.

`slices`: the interface, and one process that computes the slices one after the other
`group`: the ranks of a party under torchrun, a `torch.distributed` group with gloo
`gradients`: gradients of slices, added in the order of the slices
`link`: the link of a party with several ranks: the first rank has it, and tells the others
`meeting`: how the ranks of one attempt find each other
`heartbeats`: how ranks notice one that is silent
`environment`: what torchrun tells a process about its rank
`buffers`: refuses models whose forward pass changes buffers
`embedding`: embedding tables that are sharded over the ranks, row by row
`own_rows`: the rows of such a table that one rank owns
`owners`: rows on their way between the ranks that use them and those that own them
`whole`: the weights of a party's modules, with those of sharded tables gathered
"""
