"""Continuous batching: requests join and leave between decode steps. It starts no thread."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ajet_backend_torch.forward import CachedModel
from ajet_backend_torch.requests import ActiveRequest, Post
from ajet_backend_torch.sampling import RowSampling, Sampled, kept_sets, sample
from ajet_backend_torch.slots import SlotTable
from ajet_core.errors import AjetError, EngineError
from ajet_core.interfaces import EngineStats, FinishReason
from ajet_engines.shaping import Shaping


class Batcher:
    """Compute requests on a model, one step at a time.

    :param post: receives the chunks and errors of requests.
    :param prefill_token_budget: maximum number of padded tokens in one prefill pass.
    :param seed: seed for requests that have no seed.
    """

    def __init__(
        self,
        model: CachedModel,
        table: SlotTable,
        post: Post,
        *,
        policy_version: int,
        prefill_token_budget: int,
        seed: int,
    ) -> None:
        self._model = model
        self._table = table
        self._post = post
        self._version = policy_version
        self._budget = prefill_token_budget
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._waiting: list[ActiveRequest] = []
        self._running: dict[int, ActiveRequest] = {}
        self._streams: set[int] = set()
        self._tops: set[int] = set()
        self._shaped: set[int] = set()
        self._reported: set[int] = set()
        self._to_prefill: list[int] = []
        self._requests = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._sampled_tokens = 0
        self._seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._running)

    def submit(self, request: ActiveRequest) -> None:
        """Queue a request."""
        self._requests += 1
        self._prompt_tokens += len(request.prompt)
        self._waiting.append(request)

    def cancel(self, request: ActiveRequest) -> None:
        """Remove a request and free its slot; a finished request is ignored."""
        if request in self._waiting:
            self._waiting.remove(request)
        elif self._running.get(request.slot) is request:
            self._leave(request.slot)

    def abort_all(self) -> None:
        """End every request with finish reason "abort"."""
        for slot in list(self._running):
            self._finish(slot, "abort")
        for request in self._waiting:
            request.note_version(0, self._version)
            empty = np.zeros(0, np.int32), np.zeros(0, np.float32)
            self._post.put(request, request.chunks(*empty, "abort"))
        self._waiting.clear()

    def fail_all(self, error: AjetError) -> None:
        """End every request with an error."""
        for request in (*self._running.values(), *self._waiting):
            self._post.put(request, [error])
        for slot in list(self._running):
            self._leave(slot)
        self._waiting.clear()

    def swap(self, model: CachedModel, policy_version: int) -> None:
        """Continue with other weights; running requests are prefilled again from the start."""
        self._model = model
        self._version = policy_version
        self._table.forget()
        self._to_prefill = list(self._running)
        for slot, request in self._running.items():
            request.note_version(
                int(self._table.length[slot]) - len(request.prompt), policy_version
            )

    def stats(self) -> EngineStats:
        """Return counters and the present load."""
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            sampled_tokens=self._sampled_tokens,
            forward_seconds=self._seconds,
        )

    def step(self) -> None:
        """Admit what fits, run one prefill pass, and decode one token of every ready request."""
        started = time.perf_counter()
        if self._waiting:
            self._admit()
        if self._to_prefill:
            self._prefill()
        rows = np.flatnonzero(self._table.ready)
        if rows.size:
            self._decode(rows)
        self._seconds += time.perf_counter() - started

    def _admit(self) -> None:
        table = self._table
        left: list[ActiveRequest] = []
        for index, request in enumerate(self._waiting):
            if len(self._running) == len(table.busy):
                left.extend(self._waiting[index:])
                break
            placement = table.place(request.prompt)
            if placement is None:
                left.append(request)
                continue
            slot = placement.slot
            if placement.source is not None:
                self._model.cache.copy_prefix(placement.source, slot, placement.shared)
            table.occupy(placement, request.prompt, request.request)
            request.slot = slot
            request.cached_tokens = placement.shared
            request.note_version(0, self._version)
            self._running[slot] = request
            self._to_prefill.append(slot)
            self._cached_tokens += placement.shared
            if request.request.stream:
                self._streams.add(slot)
            if request.request.sampling.top_logprobs:
                self._tops.add(slot)
            if request.shaping is not None:
                self._shaped.add(slot)
            if request.reports:
                self._reported.add(slot)
        self._waiting = left

    def _prefill(self) -> None:
        table = self._table
        rows, counts = table.prefill_plan(np.array(self._to_prefill), self._budget)
        starts = table.computed[rows]
        tokens = table.tokens[rows, : int((starts + counts).max())]
        logits = self._model.prefill(rows, tokens, starts, counts)
        table.computed[rows] += counts
        done = np.flatnonzero(table.computed[rows] == table.length[rows])
        if not done.size:
            return
        ready = rows[done]
        table.ready[ready] = True
        finished = set(ready.tolist())
        self._to_prefill = [slot for slot in self._to_prefill if slot not in finished]
        if done.size < rows.size:
            logits = logits[torch.from_numpy(done).to(logits.device)]
        self._append(ready, logits)

    def _decode(self, rows: NDArray[np.int64]) -> None:
        table = self._table
        positions = table.length[rows] - 1
        ids = table.tokens[rows, positions].astype(np.int64)
        logits = self._model.decode(rows, ids, positions)
        table.computed[rows] += 1
        self._append(rows, logits)

    def _append(self, rows: NDArray[np.int64], logits: torch.Tensor) -> None:
        """Sample a token for each of `rows` from logits [n, vocabulary]; end finished requests."""
        table = self._table
        places = table.length[rows]
        uniforms = self._random.random(len(rows))
        seeded = table.seeded[rows]
        if seeded.any():
            uniforms = np.where(seeded, table.uniforms[rows, places], uniforms)
        device = logits.device
        sampled = sample(
            logits, self._row_sampling(rows, device), torch.from_numpy(uniforms).to(device)
        )
        # Both in one float64 tensor, so that each step waits for the GPU only once.
        both = torch.stack([sampled.ids.double(), sampled.logprobs.double()]).cpu().numpy()
        ids = both[0].astype(np.int32)
        logprobs = both[1]
        table.tokens[rows, places] = ids
        table.logprobs[rows, places] = logprobs
        table.length[rows] = places + 1
        self._sampled_tokens += len(rows)
        if self._tops:
            self._keep_top(rows, sampled)
        if sampled.reported is not None:
            self._report(rows, sampled.ids, sampled.reported)
        for lane, shaping in self._shapings(rows):
            shaping.take(int(ids[lane]))
        stopped = table.stop[rows, ids]
        ended = stopped | (places + 1 >= table.end[rows])
        broken = ~np.isfinite(logprobs)
        if broken.any():
            for slot in rows[broken].tolist():
                self._fail_row(slot)
            ended &= ~broken
        if self._streams:
            going = ~(ended | broken)
            for slot in self._streams.intersection(rows[going].tolist()):
                self._send(slot, None)
        if ended.any():
            for slot, by_stop in zip(rows[ended].tolist(), stopped[ended].tolist(), strict=True):
                self._finish(slot, "stop" if by_stop else "length")

    def _shapings(self, rows: NDArray[np.int64]) -> list[tuple[int, Shaping]]:
        """Return (index into `rows`, shaping) for each request that has a shaping."""
        if not self._shaped:
            return []
        shapings = ((lane, self._running[slot].shaping) for lane, slot in enumerate(rows.tolist()))
        return [(lane, shaping) for lane, shaping in shapings if shaping is not None]

    def _row_sampling(self, rows: NDArray[np.int64], device: torch.device) -> RowSampling:
        plain = self._plain_sampling(rows, device)
        if lanes := self._lanes(rows, self._reported):
            plain = replace(plain, reported_rows=torch.tensor(lanes, device=device))
        shapings = self._shapings(rows)
        if not shapings:
            return plain
        return replace(
            plain,
            shaped_rows=torch.tensor([lane for lane, _ in shapings], device=device),
            shaping=torch.from_numpy(np.stack([it.row() for _, it in shapings])).to(device),
        )

    def _plain_sampling(self, rows: NDArray[np.int64], device: torch.device) -> RowSampling:
        table = self._table
        if table.is_plain(rows):
            return RowSampling()
        cut = np.flatnonzero(table.cut[rows])
        greedy = table.greedy[rows]
        temperature = torch.from_numpy(table.temperature[rows]).to(device)
        on_greedy = torch.from_numpy(greedy).to(device) if greedy.any() else None
        if not cut.size:
            return RowSampling(temperature=temperature, greedy=on_greedy)
        top_k = table.top_k[rows][cut]
        return RowSampling(
            temperature=temperature,
            greedy=on_greedy,
            cut_rows=torch.from_numpy(cut).to(device),
            top_p=torch.from_numpy(table.top_p[rows][cut]).to(device),
            top_k=torch.from_numpy(top_k).to(device),
            min_p=torch.from_numpy(table.min_p[rows][cut]).to(device),
            cut_width=int(top_k.max()),
        )

    def _keep_top(self, rows: NDArray[np.int64], sampled: Sampled) -> None:
        lanes = self._lanes(rows, self._tops)
        if not lanes:
            return
        wanted = [self._running[int(rows[lane])] for lane in lanes]
        most = max(request.request.sampling.top_logprobs for request in wanted)
        values, ids = sampled.all_logprobs[lanes].topk(min(most, self._table.vocab_size), dim=-1)
        for request, row_ids, row_values in zip(wanted, ids.tolist(), values.tolist(), strict=True):
            count = request.request.sampling.top_logprobs
            request.top_logprobs.append(list(zip(row_ids[:count], row_values[:count], strict=True)))

    def _report(self, rows: NDArray[np.int64], ids: torch.Tensor, reported: torch.Tensor) -> None:
        """Keep what tokens were sampled from, see `Sampled.reported`."""
        lanes = self._lanes(rows, self._reported)
        chosen = reported.gather(1, ids[lanes][:, None])[:, 0].tolist()
        for lane, one in zip(lanes, zip(chosen, kept_sets(reported), strict=True), strict=True):
            request = self._running[int(rows[lane])]
            request.report(*one)
            if not request.reports:
                self._reported.discard(request.slot)

    def _lanes(self, rows: NDArray[np.int64], slots: set[int]) -> list[int]:
        """Return the indices in `rows` of these slots."""
        if not slots:
            return []
        return [lane for lane, slot in enumerate(rows.tolist()) if slot in slots]

    def _send(self, slot: int, finish_reason: FinishReason | None) -> None:
        request = self._running[slot]
        span = slice(len(request.prompt), int(self._table.length[slot]))
        chunks = request.chunks(
            self._table.tokens[slot, span], self._table.logprobs[slot, span], finish_reason
        )
        self._post.put(request, chunks)

    def _finish(self, slot: int, reason: FinishReason) -> None:
        self._send(slot, reason)
        self._leave(slot)

    def _fail_row(self, slot: int) -> None:
        request = self._running[slot]
        error = EngineError(
            f"request {request.request.request_id}: the model computed logits that are not finite "
            f"(policy version {self._version}); its weights or activations overflowed. Publish "
            "finite weights, or use a wider dtype"
        )
        self._post.put(request, [error])
        self._leave(slot)
        self._table.computed[slot] = 0
        self._model.cache.clear(slot)

    def _leave(self, slot: int) -> None:
        del self._running[slot]
        self._streams.discard(slot)
        self._tops.discard(slot)
        self._shaped.discard(slot)
        self._reported.discard(slot)
        if slot in self._to_prefill:
            self._to_prefill.remove(slot)
        self._table.release(slot)
