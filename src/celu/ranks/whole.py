"""The weights of a party's modules, with those of sharded tables gathered block by block.

All ranks call these functions at the same time; the first one gets the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from torch import Tensor, nn

from celu.model_identity import StreamedTensor, bytes_of, digest_weights, weights_of
from celu.ranks.own_rows import OwnRows, blocks_of, sharded_names
from celu.ranks.slices import Slices

Weights = dict[str, Tensor | StreamedTensor]


def whole_weights(modules: Mapping[str, nn.Module | None], ranks: Slices) -> Weights:
    """All parameters and buffers, as `weights_of` returns them where no table is sharded."""
    shards = sharded_names(modules)
    return {
        name: _streamed(shards[name], ranks) if name in shards else tensor
        for name, tensor in weights_of(modules).items()
    }


def digest_whole(modules: Mapping[str, nn.Module | None], ranks: Slices) -> str:
    """The digest of all weights, at all ranks."""
    weights = whole_weights(modules, ranks)
    digest = digest_weights(weights)
    if not sharded_names(modules):
        return digest
    shared: str = ranks.share(lambda: digest)
    return shared


def pass_on(modules: Mapping[str, nn.Module | None], ranks: Slices) -> None:
    """What a rank other than the first does while that one reads the weights in their order."""
    for tensor in whole_weights(modules, ranks).values():
        if isinstance(tensor, StreamedTensor):
            for _ in bytes_of(tensor):
                pass


def _streamed(own: OwnRows, ranks: Slices) -> StreamedTensor:
    shape = (own.table_rows, *own.shape[1:])
    return StreamedTensor(own.dtype, shape, partial(_parts, own, ranks))


def _parts(own: OwnRows, ranks: Slices) -> Iterator[Tensor]:
    from celu.ranks.group import Group  # torch.distributed takes a while to import
    from celu.ranks.owners import gather_rows

    assert isinstance(ranks, Group)
    for start, stop in blocks_of(own):
        yield gather_rows(ranks, own, start, stop)
