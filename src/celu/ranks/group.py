"""The ranks of a party under torchrun: a `torch.distributed` group with gloo.

All waits end at the deadline of the group, soon where a rank is silent, and at once where it is
gone. A rank that fails says why in the group's store, so that the others end with its error and not
with one about the network; a rank that was killed says nothing, and the others raise RankLost:
torchrun then starts all again.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from celu import errors
from celu.errors import CeluError, RankLost
from celu.ranks.gradients import Gradients, sum_dense, sum_sparse
from celu.ranks.heartbeats import Heartbeats
from celu.ranks.meeting import meet
from celu.ranks.own_rows import OwnRows
from celu.ranks.owners import follows_route, sum_owned
from celu.ranks.slices import Slices

_SHORT = 2048  # bytes of a shared value that fit into the first broadcast
_NONE, _DENSE, _SPARSE, _OTHER_ROWS = range(4)  # of gradients: the last has not those of a lookup
_FAILED, _DONE = "celu/failed", "celu/done"
_LAUNCH = "celu/launch"  # in torchrun's own store, which survives its restarts
_REASON_S = 2.0  # for the reason of a rank that is gone
_END_S = 20.0  # for the first rank, to tell the peers
_NEVER_SENT = 0x63656C75  # the tag of a message that no rank sends
_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@contextmanager
def joined(timeout_s: float, silent_s: float | None = None) -> Iterator[Group]:
    """Join the group that torchrun's environment describes; leave it at the end of the block.

    If the block raises, the other ranks are told why. Raises RankLost if ranks are missing after
    `timeout_s`, which is also how long any of them waits for another that lives; one without a
    heartbeat for `silent_s` is lost.
    """
    timeout = dt.timedelta(seconds=timeout_s)
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
        attempt = meet(store, rank, size, timeout_s)
        launch = store.compare_set(_LAUNCH, "", attempt).decode()  # of the first attempt
        store = PrefixStore(attempt, store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise RankLost(
            f"rank {os.environ.get('RANK')}: could not join the other ranks: {_line(error)}; look "
            "at their output, and check that they reach MASTER_ADDR"
        ) from error
    group = Group(store, rank, size, attempt)
    group.launch = launch
    group.watch(timeout_s if silent_s is None else silent_s)
    try:
        yield group
    except BaseException as error:
        group.fail(error)
        raise
    else:
        group.leave()


class Group(Slices):
    """This rank among those of its party; see `Slices`. `own` is the one slice with its number.

    `attempt` names the group: it has another name after each restart.
    """

    def __init__(self, store: Store, rank: int, size: int, attempt: str) -> None:
        super().__init__(size)
        self.own = range(rank, rank + 1)
        self.rank, self.attempt = rank, attempt
        self._store = store
        self._num_tables = 0
        self._buffers: dict[tuple[torch.dtype, int], tuple[Tensor, Tensor]] = {}
        self._is_broken = False
        self._heartbeats: Heartbeats | None = None
        self._silent: str | None = None  # who, and for how long
        self._store_answers = True

    def watch(self, silent_s: float) -> None:
        """Watch for ranks without a heartbeat for this time: a wait for one then raises."""
        self._heartbeats = Heartbeats(
            self._store, self.rank, self.size, silent_s, partial(self._lose, silent_s)
        )

    def share(self, compute: Callable[[], Any]) -> Any:
        """See `Slices`."""
        answer: dict[str, Any] = {}
        failed: CeluError | None = None
        if self.is_first:
            try:
                answer = {"value": compute()}
            except CeluError as error:
                failed, answer = error, {"error": _describe(error)}
        answer = self._broadcast_json(answer)
        if failed is not None:
            raise failed
        if "error" in answer:
            raise _rebuild(answer["error"])
        return answer["value"]

    def gather(self, tensor: Tensor, rows: int) -> Tensor:
        """See `Slices`; the ranks send their rows to the first."""
        bounds = self.bounds(rows)
        if not self.is_first:
            if bounds[self.rank + 1] > bounds[self.rank]:
                self.exchange(dist.send, tensor.detach().cpu().contiguous(), 0)
            return tensor
        whole = torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype)
        whole[: bounds[1]] = tensor.detach()
        for rank in range(1, self.size):
            if bounds[rank + 1] > bounds[rank]:
                part = whole[bounds[rank] : bounds[rank + 1]]
                self.exchange(dist.recv, part, rank)
        return whole.to(tensor.device)

    def total(self, part: Tensor) -> Tensor:
        """See `Slices`."""
        parts = [torch.empty_like(part, device="cpu") for _ in range(self.size)]
        self.exchange(dist.all_gather, parts, part.detach().cpu())
        return sum_dense(parts).to(part.device)

    def scatter(
        self, compute: Callable[[], Sequence[Tensor]], rows: int, widths: Sequence[int]
    ) -> list[Tensor]:
        """See `Slices`."""
        whole: list[Tensor] = []
        self.share(lambda: whole.extend(compute()))  # all raise what it raises
        bounds, found = self.bounds(rows), []
        for index, width in enumerate(widths):
            if self.is_first:
                found.append(whole[index][: bounds[1]].clone())
                ready = whole[index].detach().cpu().contiguous()
            for rank in range(1, self.size):
                count = bounds[rank + 1] - bounds[rank]
                if self.is_first and count:
                    part = ready[bounds[rank] : bounds[rank + 1]]
                    self.exchange(dist.send, part, rank)
                elif rank == self.rank:
                    part = torch.empty((count, width))
                    if count:
                        self.exchange(dist.recv, part, 0)
                    found.append(part)
        return found

    def broadcast(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """See `Slices`."""
        described = self.share(
            lambda: [[n, _DTYPES.index(t.dtype), *t.shape] for n, t in (tensors or {}).items()]
        )
        found = {}
        for name, dtype, *shape in described:
            tensor = torch.empty(shape, dtype=_DTYPES[dtype])
            if tensors is not None:
                tensor = tensors[name].detach().cpu().contiguous()
            if tensor.numel():
                flat = tensor.reshape(-1).view(torch.uint8)
                self.exchange(dist.broadcast, flat, 0)
            found[name] = tensor
        return found

    def sum_gradients(
        self, parts: list[Gradients], parameters: Sequence[nn.Parameter]
    ) -> Gradients:
        """See `Slices`: what a rank receives of everybody, it adds in the order of the ranks."""
        (own,) = parts
        kinds, are_equal = self._kinds(own, parameters)
        total: Gradients = [None] * len(own)
        dense = [index for index, kind in enumerate(kinds) if kind == _DENSE]
        for index, gradient in zip(dense, self._sum_dense(own, dense, parameters), strict=True):
            total[index] = gradient
        for index, kind in enumerate(kinds):
            parameter = parameters[index]
            if kind >= _SPARSE and isinstance(parameter, OwnRows):
                follows = kind == _SPARSE and are_equal[index]
                total[index] = sum_owned(self, own[index], parameter, follow_route=follows)
            elif kind >= _SPARSE:
                total[index] = self._sum_sparse(own[index], parameter)
        return total

    def number_table(self) -> int:
        """The number of a new sharded table, the same at all ranks."""
        self._num_tables += 1
        return self._num_tables

    def is_broken(self) -> bool:
        """Whether a rank failed or is gone; from any thread."""
        if self._is_broken:
            return True
        try:
            return self._store.check([_FAILED])
        except RuntimeError:  # the store is gone
            return True

    def leave(self) -> None:
        """Leave together: one that ends early would look lost to the others."""
        self.exchange(dist.barrier)
        self._stop_watching()
        dist.destroy_process_group()

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks why this one ends, and let the first one tell the peers.

        torchrun ends all ranks as soon as one has ended.
        """
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends anyway, with its own exit code
        self._stop_watching()
        if not self._store_answers:  # nor would it take the reason
            return
        with suppress(RuntimeError):
            if not isinstance(error, CeluError | KeyboardInterrupt):
                kind = type(error).__name__  # not its text, which may quote rows
                error = CeluError(f"rank {self.rank} ended with {kind}; its own output says where")
            if isinstance(error, CeluError) and not isinstance(error, RankLost):
                self._store.set(_FAILED, json.dumps(_describe(error)))
            dist.destroy_process_group()  # a rank that waits for this one now sees that it is gone
            if self.is_first:
                self._store.set(_DONE, "1")
            elif not isinstance(error, RankLost):
                self._store.wait([_DONE], dt.timedelta(seconds=_END_S))

    def _kinds(
        self, own: Gradients, parameters: Sequence[nn.Parameter]
    ) -> tuple[list[int], list[bool]]:
        """Of each parameter the highest kind at any rank, and whether all ranks have that."""
        kinds = [_kind(*pair) for pair in zip(own, parameters, strict=True)]
        found = torch.tensor([kinds, [-kind for kind in kinds]])
        self.exchange(dist.all_reduce, found, dist.ReduceOp.MAX)
        highest, lowest = found.tolist()
        return highest, [high == -low for high, low in zip(highest, lowest, strict=True)]

    def _sum_dense(
        self, own: Gradients, which: Sequence[int], parameters: Sequence[nn.Parameter]
    ) -> list[Tensor]:
        """All-to-all, a sum in order, all-gather; one exchange for each dtype."""
        found: dict[int, Tensor] = {}
        for dtype in sorted({parameters[i].dtype for i in which}, key=str):
            same = [i for i in which if parameters[i].dtype == dtype]
            sizes = [parameters[i].numel() for i in same]
            flat, received = self._memory(dtype, sum(sizes))
            for index, into in zip(same, flat[: sum(sizes)].split(sizes), strict=True):
                gradient = own[index]
                if gradient is None:
                    into.zero_()
                else:
                    into.copy_(gradient.reshape(-1))
            self.exchange(dist.all_to_all_single, received, flat)
            length = len(flat) // self.size
            summed = sum_dense(received.split(length))
            self.exchange(dist.all_gather, list(flat.split(length)), summed)
            for index, part in zip(same, flat[: sum(sizes)].split(sizes), strict=True):
                like = parameters[index]
                found[index] = part.reshape(like.shape).to(like.device)
        return [found[index] for index in which]

    def _memory(self, dtype: torch.dtype, size: int) -> tuple[Tensor, Tensor]:
        """Memory for the gradients of a step, as they are sent and received: used in every step.

        A step is applied before the next one is summed, so nobody needs the earlier sum.
        """
        found = self._buffers.get((dtype, size))
        if found is None:
            length = -(-size // self.size) * self.size
            found = torch.zeros(length, dtype=dtype), torch.empty(length, dtype=dtype)
            self._buffers[dtype, size] = found
        return found

    def _sum_sparse(self, own: Tensor | None, like: Tensor) -> Tensor:
        """All ranks receive everybody's rows, and add them in the order of the ranks."""
        rows = torch.empty(0, dtype=torch.int64) if own is None else own._indices()[0].cpu()
        values = torch.empty((0, *like.shape[1:]), dtype=like.dtype)
        if own is not None:
            values = own._values().cpu()
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self.exchange(dist.all_gather, counts, torch.tensor([len(rows)]))
        sizes = [int(count) for count in counts]
        all_rows = self._gather_padded(rows, sizes)
        all_values = self._gather_padded(values, sizes)
        return sum_sparse(all_rows, all_values, like.shape).to(like.device)

    def _gather_padded(self, own: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Everybody's tensor, whose first dimensions are `sizes`."""
        most = max(sizes)
        padded = torch.zeros((most, *own.shape[1:]), dtype=own.dtype)
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in sizes]
        self.exchange(dist.all_gather, found, padded)
        return [tensor[:size] for tensor, size in zip(found, sizes, strict=True)]

    def _broadcast_json(self, value: Any) -> Any:
        """The value of the first rank; one that is short takes one broadcast."""
        buffer = torch.zeros(_SHORT, dtype=torch.uint8)
        data = b""
        if self.is_first:
            data = json.dumps(value).encode()
            head = len(data).to_bytes(8, "little") + data[: _SHORT - 8]
            buffer[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self.exchange(dist.broadcast, buffer, 0)
        head = buffer.numpy().tobytes() if not self.is_first else b""
        length = len(data) if self.is_first else int.from_bytes(head[:8], "little")
        if not self.is_first:
            data = head[8 : 8 + length]
        if length > _SHORT - 8:
            rest = torch.zeros(length - (_SHORT - 8), dtype=torch.uint8)
            if self.is_first:
                rest = torch.frombuffer(bytearray(data[_SHORT - 8 :]), dtype=torch.uint8)
            self.exchange(dist.broadcast, rest, 0)
            if not self.is_first:
                data += rest.numpy().tobytes()
        return value if self.is_first else json.loads(data)

    def exchange(self, collective: Callable[..., Any], *arguments: Any) -> None:
        """Run a collective; if a rank is gone, raise its error, or RankLost."""
        try:
            collective(*arguments)
        except RuntimeError as error:
            self._is_broken = True
            raise self._reason(error) from error

    def _stop_watching(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.stop()

    def _lose(self, silent_s: float, rank: int | None) -> None:
        """Let a wait for any rank fail: one rank is silent, or the store (None)."""
        self._store_answers = rank is not None
        who = "torchrun's store" if rank is None else f"rank {rank}"
        self._silent = f"{who} has been silent for {silent_s:g} s, half of deadline_s"
        self._is_broken = True
        # Gloo cannot abort, but where a receive exceeds its time, it closes all connections.
        with suppress(RuntimeError):
            other = rank or (1 if self.is_first else 0)
            receive = dist.irecv(torch.empty(1), other, tag=_NEVER_SENT)
            if receive is not None:
                receive.wait(dt.timedelta(milliseconds=1))

    def _reason(self, error: RuntimeError) -> CeluError:
        if self._silent is not None:
            return RankLost(
                f"rank {self.rank}: {self._silent}: the process was stopped, or its machine is "
                "gone; torchrun restarts all ranks if --max-restarts allows it, and the run "
                "resumes from its last checkpoint"
            )
        with suppress(RuntimeError):
            self._store.wait([_FAILED], dt.timedelta(seconds=_REASON_S))
            return _rebuild(json.loads(self._store.get(_FAILED)))
        return RankLost(
            f"rank {self.rank}: another rank of this party is gone or did not answer in time "
            f"({_line(error)}); torchrun restarts all ranks if --max-restarts allows it, and the "
            "run resumes from its last checkpoint"
        )


def _kind(gradient: Tensor | None, parameter: nn.Parameter) -> int:
    if gradient is None or not gradient.is_sparse:
        return _NONE if gradient is None else _DENSE
    is_other = isinstance(parameter, OwnRows) and not follows_route(gradient, parameter)
    return _OTHER_ROWS if is_other else _SPARSE


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _describe(error: CeluError) -> dict[str, Any]:
    return {"type": type(error).__name__, "message": str(error)}


def _rebuild(described: Mapping[str, str]) -> CeluError:
    """The error of another rank; peers hear of it from the first, so only its text matters."""
    kind = getattr(errors, described["type"], CeluError)
    error: CeluError = kind(described["message"])
    return error
