"""The steps of a check of many nodes: gather the nodes, check each, read clocks, measure between them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

import msgspec

from gpudoctor.api.load.request import Backend
from gpudoctor.cluster.check import messages
from gpudoctor.cluster.check.hub import Hub, names_of_missing
from gpudoctor.cluster.check.model import ClusterRunPlan
from gpudoctor.cluster.outliers import slow_pairs
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.network import Reach
from gpudoctor.probes.collective.merge import Pair, rounds_of
from gpudoctor.report.model import Report

_PINGS = 5
_PING_LIMIT_S = 10.0
# gloo: CPU ranks share the machine with other work, and 1 MiB is enough for TCP to fill a link. NCCL reaches its full
# bandwidth from about 256 MiB (nccl-tests, doc/PERFORMANCE.md: bandwidth is flat at large sizes)
_SIZE_BYTES: dict[Backend, int] = {"nccl": 256 << 20, "gloo": 1 << 20}
_BOX_S: dict[Backend, float] = {"nccl": 0.5, "gloo": 0.3}
# A pair below this share of the usual rate is slow (warn); below the second share it fails. Both are gpudoctor's own
# choice. Over NCCL, healthy pairs of one fabric differ by a few percent, and half the rate is a missing NIC or rail.
# Over gloo, CPU ranks share their cores with other work (1 to 14 Gbit/s were seen on idle links), so that only a link
# that came up at a lower speed, a tenth of it, stands out.
SLOW_SHARE: dict[Backend, float] = {"nccl": 0.80, "gloo": 0.30}
FAIL_SHARE: dict[Backend, float] = {"nccl": 0.50, "gloo": 0.15}
_GIVE_UP_AFTER = 3  # failed groups of a node: each may take the whole time limit of a group
_ROUNDS_BOX_S = 600.0


class NodeProgress(msgspec.Struct):
    """What is known of one node so far. `phase` is the step during which it was lost."""

    name: str
    hostname: str
    index: int | None
    address: str
    reach: Reach | None = None
    report: Report | None = None
    no_report: str | None = None
    offset_s: float | None = None
    error_s: float | None = None
    ranks: int | None = None
    interface: str | None = None
    left_out: Missing | None = None
    lost: str | None = None
    phase: str | None = None


class Group(msgspec.Struct):
    """all_reduce among some nodes (indexes into `ClusterSession.nodes`): its time, or the `trouble` of each node."""

    indexes: tuple[int, ...]
    ranks: int = 0
    size_bytes: int = 0
    time_s: float | None = None
    wrong: tuple[int, ...] = ()
    trouble: dict[int, str] = {}
    again: bool = False

    @property
    def busbw_gb_s(self) -> float | None:
        """The bus bandwidth of all_reduce in GB/s as nccl-tests defines it: size / time * 2 (n - 1) / n."""
        if self.time_s is None or self.ranks < 2:
            return None
        return self.size_bytes / self.time_s * 2 * (self.ranks - 1) / self.ranks / 1e9


class ClusterSession:
    """Leads the members through all steps. Its attributes contain the results so far at any time."""

    def __init__(
        self, hub: Hub, plan: ClusterRunPlan, progress: Callable[[str], None], keep: Callable[[str, str, str], None]
    ) -> None:
        """`keep` is called with each node's name, host name and report as JSON."""
        self.hub, self.plan = hub, plan
        self.nodes: list[NodeProgress] = []
        self.missing: tuple[str, ...] = ()
        self.backend: Backend | None = None
        self.not_run: Missing | None = None
        self.everyone: Group | None = None
        self.pairs: dict[Pair, Group] = {}
        self.pairs_planned = 0
        self._progress, self._keep = progress, keep
        self._phase = "gathering"
        self._ports: dict[int, int] = {}
        self._in_vain: Counter[int] = Counter()
        self._measured: set[int] = set()
        self._groups_formed = 0

    def run(self, given_up: Callable[[], bool]) -> None:
        """Do all steps. A node that does not answer takes no further part; the others continue."""
        self._gather(given_up)
        if self.nodes:
            self._check()
            self._read_clocks()
            self._measure()

    def _gather(self, given_up: Callable[[], bool]) -> None:
        self._begin("waiting for the nodes")
        self.hub.gather(self.plan.count, self.plan.join_limit_s, given_up)
        self.nodes = [NodeProgress(m.name, m.hostname, m.index, m.address) for m in self.hub.members]
        self.missing = names_of_missing(self.hub.members, self.plan.count, self.plan.names)

    def _check(self) -> None:
        limit_s = self.plan.check_limit_s
        self._begin(f"checking {len(self.nodes)} nodes, level {self.plan.level}")
        orders = {index: messages.CheckOrder(limit_s) for index in self.hub.present()}
        for index, answer in sorted(self._ask(orders, limit_s + self.plan.slack_s).items()):
            node = self.nodes[index]
            if not isinstance(answer, messages.Checked):
                node.no_report = _words(answer)
                continue
            node.reach = msgspec.structs.replace(answer.reach, hostname=node.hostname)
            if isinstance(answer.report, Missing):
                node.no_report = answer.report.reason
                continue
            try:
                report = msgspec.json.decode(answer.report, type=Report)
            except msgspec.DecodeError as error:
                node.no_report = f"its report is not one of this version of gpudoctor ({error})"
                continue
            # a check that failed with an error judged nothing
            node.no_report, node.report = report.error, report if report.error is None else None
            self._keep(node.name, node.hostname, answer.report)

    def _read_clocks(self) -> None:
        self._begin("reading the clocks")
        booted_s = time.time() - time.monotonic()  # read once: somebody may set this clock meanwhile
        for index in self.hub.present():
            for _ in range(_PINGS):
                sent = time.monotonic()
                answer = self._ask({index: messages.Ping()}, _PING_LIMIT_S)[index]
                node, error_s = self.nodes[index], (time.monotonic() - sent) / 2
                if not isinstance(answer, messages.Pong):
                    break
                if node.error_s is None or error_s < node.error_s:
                    node.offset_s, node.error_s = answer.clock_s - (booted_s + sent + error_s), error_s

    def _measure(self) -> None:
        backend = self._chosen_backend()
        present = self.hub.present()
        if backend is None:
            return
        if len(present) < 2:
            self.not_run = Missing("there is only one node to measure")
            return
        self.backend = backend
        ready = self._open(backend, present)
        if len(ready) < 2:
            outs = [f"{self.nodes[p].name}: {out.reason}" for p in present if (out := self.nodes[p].left_out)]
            why = f"fewer than two nodes could take part; {'; '.join(outs[:2])}"
            self.not_run = self.not_run or Missing(why, "failed")
            return
        self._begin(f"all_reduce over {len(ready)} nodes")
        self.everyone = self._measured_groups(backend, [tuple(ready)])[0]
        self._hold_tournament(backend, ready)

    def _chosen_backend(self) -> Backend | None:
        """The backend to measure with; None, with the reason in `not_run`, if nothing can be measured."""
        if self.plan.backend == "gloo":
            return "gloo"
        reports = [node.report for node in self.nodes if node.report is not None]
        loaded = any(r.measurements.launch and r.measurements.launch.backend == "nccl" for r in reports)
        if loaded:
            return "nccl"
        if self.plan.level == "quick":
            self.not_run = Missing("level quick puts no load on GPUs; --level standard measures between nodes")
        elif not any(report.gpus for report in reports):
            self.not_run = Missing("no GPU to load; --backend gloo measures CPU ranks")
        else:
            self.not_run = Missing("no node's own check put load on its GPUs; its report says why")
        return None

    def _open(self, backend: Backend, present: Sequence[int]) -> list[int]:
        self._begin("starting the ranks of all nodes")
        limit_s = self.plan.open_limit_s
        orders = {index: messages.Open(backend, self.nodes[index].address, limit_s) for index in present}
        ready: list[int] = []
        for index, answer in sorted(self._ask(orders, limit_s + self.plan.slack_s).items()):
            node = self.nodes[index]
            if isinstance(answer, messages.Ready):
                ready.append(index)
                node.ranks, node.interface = answer.ranks, answer.interface
                self._ports[index] = answer.port
            else:
                absent = isinstance(answer, messages.MemberFailure) and answer.absent
                node.left_out = Missing(_words(answer), "absent" if absent else "failed")
                if absent:
                    self.not_run = self.not_run or Missing(f"{node.name}: {_words(answer)}")
        return sorted(ready)

    def _hold_tournament(self, backend: Backend, ready: Sequence[int]) -> None:
        rounds = rounds_of(len(ready))
        self.pairs_planned = sum(map(len, rounds))
        began = time.monotonic()
        for number, pairs in enumerate(rounds, 1):
            self._begin(f"pairs of nodes, round {number} of {len(rounds)}")
            groups = [(ready[a], ready[b]) for a, b in pairs if self._worth(ready[a]) and self._worth(ready[b])]
            for group in self._measured_groups(backend, groups):
                self.pairs[group.indexes[0], group.indexes[1]] = group
            if time.monotonic() - began > _ROUNDS_BOX_S:
                break
        # measured alone, a pair is not disturbed by the other pairs of its round or by what disturbed it before
        for pair in self._doubtful(backend):
            if not (self._worth(pair[0]) and self._worth(pair[1])):
                continue
            if time.monotonic() - began > 2 * _ROUNDS_BOX_S:
                break
            self._begin(f"once more, alone: {self.nodes[pair[0]].name} and {self.nodes[pair[1]].name}")
            first, again = self.pairs[pair], self._measured_groups(backend, [pair])[0]
            better = again if (again.busbw_gb_s or 0) >= (first.busbw_gb_s or 0) else first
            better.again = True
            better.wrong = tuple(sorted({*first.wrong, *again.wrong}))
            self.pairs[pair] = better

    def _doubtful(self, backend: Backend) -> list[Pair]:
        """The pairs to measure again: those that failed, are slow compared with others, or are below the floor."""
        rates = self.rates()
        doubtful = [pair for pair, group in self.pairs.items() if group.trouble]
        doubtful += slow_pairs(rates, SLOW_SHARE[backend])
        floor = self.plan.floor_gb_s or 0.0
        return list(dict.fromkeys([*doubtful, *(pair for pair, rate in rates.items() if rate < floor)]))

    def rates(self) -> dict[Pair, float]:
        """The rate in GB/s of each pair that was measured."""
        return {pair: rate for pair, group in self.pairs.items() if (rate := group.busbw_gb_s) is not None}

    def _worth(self, index: int) -> bool:
        """Whether to measure with this node again: it is there, and has not failed with several partners in a row."""
        is_there = self.nodes[index].lost is None and index in self._ports
        return is_there and (self._in_vain[index] < _GIVE_UP_AFTER or index in self._measured)

    def _measured_groups(self, backend: Backend, groups: Iterable[tuple[int, ...]]) -> list[Group]:
        """Have these groups measure at the same time."""
        planned = [Group(indexes, trouble={}) for indexes in groups]
        orders: dict[int, messages.JoinGroup] = {}
        for group in planned:
            self._groups_formed += 1
            first = group.indexes[0]
            size = sum(self.nodes[index].ranks or 0 for index in group.indexes)
            for index in group.indexes:
                orders[index] = messages.JoinGroup(
                    key=f"group-{self._groups_formed}",
                    first_rank=group.ranks,
                    size=size,
                    host=self.nodes[first].address,
                    port=self._ports[first],
                    size_bytes=_SIZE_BYTES[backend],
                    box_s=_BOX_S[backend],
                    limit_s=self.plan.rendezvous_limit_s,
                )
                group.ranks += self.nodes[index].ranks or 0
        answers = self._ask(orders, self.plan.rendezvous_limit_s + self.plan.open_limit_s + self.plan.slack_s)
        for group in planned:
            self._take(group, backend, answers)
        return planned

    def _take(self, group: Group, backend: Backend, answers: Mapping[int, messages.Answer]) -> None:
        times: list[messages.Times] = []
        for index in group.indexes:
            answer = answers[index]
            if isinstance(answer, messages.Times) and answer.seconds:
                times.append(answer)
                continue
            group.trouble[index] = _words(answer)
            if isinstance(answer, messages.MemberFailure) and answer.port is not None:
                self._ports[index] = answer.port
            else:
                self._ports.pop(index, None)
                self.nodes[index].left_out = Missing(f"its ranks did not start again after: {_words(answer)}", "failed")
        if group.trouble or not times:
            self._in_vain.update(group.indexes)
            return
        self._measured.update(group.indexes if len(group.indexes) == 2 else ())
        group.wrong = tuple(p for p, t in zip(group.indexes, times, strict=True) if not all(t.right))
        group.size_bytes = times[0].size_bytes
        # an all_reduce takes as long as its slowest rank
        per_operation = [max(of_ranks) for of_ranks in zip(*(rank for t in times for rank in t.seconds), strict=False)]
        group.time_s = min(per_operation) if backend == "gloo" else median(per_operation)

    def _ask(self, orders: Mapping[int, messages.Order], limit_s: float) -> dict[int, messages.Answer]:
        answers = self.hub.ask(orders, limit_s)
        for node, member in zip(self.nodes, self.hub.members, strict=True):
            if member.lost is not None and node.lost is None:
                node.lost, node.phase = member.lost, self._phase
        return answers

    def _begin(self, phase: str) -> None:
        self._phase = phase
        self._progress(phase)


def _words(answer: messages.Answer) -> str:
    return answer.text if isinstance(answer, messages.MemberFailure) else "gave an answer to another question"
