from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.adapters.telemetry.disturbance import Disturbance, combined
from autotune.adapters.telemetry.foreign_cpu import ForeignCpu
from autotune.adapters.telemetry.processes import family, read_processes
from autotune.adapters.telemetry.throttling import QuotaThrottling, ThermalThrottling
from autotune.core.model_interface import Endpoint
from autotune.core.validity import MOST_FOREIGN

HERE = Endpoint(http="127.0.0.1:8000", grpc="127.0.0.1:8001")
ELSEWHERE = Endpoint(http="192.0.2.7:8000", grpc="192.0.2.7:8001")
CORES = sorted(os.sched_getaffinity(0))
WINDOW_S = 10.0
WHOLE = round(len(CORES) * WINDOW_S * os.sysconf("SC_CLK_TCK"))
"""The ticks of all cores in the window."""
ME, SERVER, STUB, OTHER = os.getpid(), 4_000_001, 4_000_002, 4_000_003


def share(of: float) -> int:
    return round(of * WHOLE)


@dataclass
class Machine:
    """A /proc of this process, a server with a child, and another process, in which time passes as
    the test says. Ticks of processes are (its own, inherited from children)."""

    root: Path
    user: int = 1000
    idle: int = 5000
    interrupts: int = 50
    steal: int = 7
    now: float = 100.0
    parents: dict[int, int] = field(
        default_factory=lambda: {ME: 1, SERVER: ME, STUB: SERVER, OTHER: 1}
    )
    started: dict[int, int] = field(default_factory=dict)
    ticks: dict[int, tuple[int, int]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def write(self) -> None:
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for core in CORES:
            first = core == CORES[0]  # what is not of the first core is idle
            user, steal = (self.user, self.steal) if first else (0, 0)
            lines.append(
                f"cpu{core} {user} 0 0 {self.idle} {self.idle} {self.interrupts} 9 {steal} 3 0"
            )
        self.root.mkdir(exist_ok=True)
        (self.root / "stat").write_text("\n".join([*lines, "intr 5", "btime 7"]))
        for pid in self.root.glob("[0-9]*/stat"):
            pid.unlink()
        for pid, parent in self.parents.items():
            own, inherited = self.ticks.get(pid, (0, 0))
            folder = self.root / str(pid)
            folder.mkdir(exist_ok=True)
            (folder / "stat").write_text(
                f"{pid} ({self.names.get(pid, 'a')}) S {parent} 1 1 0 -1 4194560 1 0 0 0"
                f" {own} 0 {inherited} 0 20 0 1 0 {self.started.get(pid, 1)} 999 9 18446744073709"
            )

    def spend(self, *, busy: float, own: dict[int, float] | None = None) -> None:
        """Let the window pass with so much of the processor busy, and of it so much used by
        these processes, as shares of all cores."""
        self.now += WINDOW_S
        self.user += share(busy)
        for pid, used in (own or {}).items():
            before, inherited = self.ticks.get(pid, (0, 0))
            self.ticks[pid] = (before + share(used), inherited)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc")


def watch(machine: Machine, *, pids=(SERVER,), endpoint: Endpoint | None = HERE) -> ForeignCpu:
    machine.write()
    watching = ForeignCpu(
        proc=machine.root, cgroups=machine.root.parent / "cgroup", clock=lambda: machine.now
    )
    watching.begin(pids, endpoint)
    return watching


def end(watching: ForeignCpu, machine: Machine) -> Disturbance:
    machine.write()
    return watching.end()


def test_what_neither_the_server_nor_the_load_nor_the_controller_used_is_foreign(machine):
    watching = watch(machine)
    machine.spend(busy=0.5, own={ME: 0.05, SERVER: 0.05, STUB: 0.1})
    assert end(watching, machine).foreign_cpu == pytest.approx(0.3, abs=0.01)


def test_a_machine_of_our_own_has_nothing_foreign(machine):
    watching = watch(machine)
    machine.spend(busy=0.5, own={SERVER: 0.1, STUB: 0.4})
    assert end(watching, machine) == Disturbance(foreign_cpu=0.0)


def test_the_hypervisors_part_is_foreign_and_named(machine):
    watching = watch(machine)
    machine.spend(busy=0.0)
    machine.steal += share(0.25)
    found = end(watching, machine)
    assert found.foreign_cpu == pytest.approx(0.25, abs=0.01)
    assert found.notes[MOST_FOREIGN] == "the hypervisor (steal) took 25%"


def test_waiting_for_disks_and_interrupts_are_nobodys(machine):
    watching = watch(machine)
    machine.spend(busy=0.0)
    machine.idle += WHOLE
    machine.interrupts += WHOLE
    assert end(watching, machine).foreign_cpu == 0


def test_the_process_that_took_most_is_named(machine):
    machine.names[OTHER] = "a (strange) name"
    watching = watch(machine)
    machine.spend(busy=0.4, own={OTHER: 0.3})
    notes = end(watching, machine).notes
    assert notes[MOST_FOREIGN] == f"a (strange) name (process {OTHER}) took 30%"


def test_processes_that_came_and_went_are_counted_though_not_named(machine):
    watching = watch(machine)
    machine.spend(busy=0.4)
    found = end(watching, machine)
    assert found.foreign_cpu == pytest.approx(0.4, abs=0.01)
    assert MOST_FOREIGN not in found.notes


def test_a_process_that_took_the_id_of_another_is_a_new_one(machine):
    machine.ticks[OTHER] = (10 * WHOLE, 0)
    watching = watch(machine)
    machine.spend(busy=0.2)
    machine.ticks[OTHER], machine.started[OTHER] = (share(0.2), 0), 77
    assert "took 20%" in end(watching, machine).notes[MOST_FOREIGN]


def test_what_a_child_used_before_it_ended_stays_ours_through_its_parent(machine):
    machine.ticks[STUB] = (share(0.5), 0)
    watching = watch(machine)
    machine.spend(busy=0.3)
    del machine.parents[STUB]
    machine.ticks[SERVER] = (0, share(0.5) + share(0.3))
    assert end(watching, machine).foreign_cpu == 0


def test_a_process_of_the_server_that_lost_its_parent_stays_ours(machine):
    watching = watch(machine)
    machine.spend(busy=0.3, own={STUB: 0.3})
    machine.parents[STUB] = 1
    assert end(watching, machine).foreign_cpu == 0


def test_where_a_process_of_ours_ended_without_leaving_its_times_it_is_unknown(machine):
    machine.ticks[STUB] = (share(0.5), 0)
    watching = watch(machine)
    machine.spend(busy=0.3)
    del machine.parents[STUB]
    found = end(watching, machine)
    assert found.foreign_cpu is None
    assert "without leaving their times" in found.notes["foreign_cpu"]


def test_a_window_too_short_for_the_clock_s_ticks_is_unknown(machine):
    watching = watch(machine)
    machine.now += 0.9
    found = end(watching, machine)
    assert found.foreign_cpu is None
    assert "under 1 s" in found.notes["foreign_cpu"]


def test_a_remote_server_on_this_machine_is_not_taken_for_a_stranger(machine):
    watching = watch(machine, pids=())
    machine.spend(busy=0.6)
    found = end(watching, machine)
    assert found.foreign_cpu is None
    assert "its processes are not known" in found.notes["foreign_cpu"]


def test_of_a_remote_server_this_machine_s_own_strangers_are_known(machine):
    watching = watch(machine, pids=(), endpoint=ELSEWHERE)
    machine.spend(busy=0.6, own={ME: 0.1})
    assert end(watching, machine).foreign_cpu == pytest.approx(0.5, abs=0.01)


def test_a_server_whose_processes_cannot_be_seen_makes_it_unknown(machine):
    del machine.parents[SERVER], machine.parents[STUB]
    watching = watch(machine)
    machine.spend(busy=0.6)
    assert end(watching, machine).foreign_cpu is None


def test_without_the_kernel_s_counters_it_is_unknown(tmp_path):
    watching = ForeignCpu(proc=tmp_path / "none")
    watching.begin([ME], HERE)
    found = watching.end()
    assert found.foreign_cpu is None
    assert "cannot be read" in found.notes["foreign_cpu"]


def quota(machine: Machine, cores: float) -> None:
    """Let both processes be in a group that may use so many cores."""
    for pid in (ME, SERVER):
        (machine.root / str(pid)).mkdir(parents=True, exist_ok=True)
        (machine.root / str(pid) / "cgroup").write_text("0::/a\n")
    group = machine.root.parent / "cgroup" / "a"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{round(cores * 100_000)} 100000\n")


def test_others_take_nothing_from_a_quota_while_enough_is_left_for_it(machine):
    quota(machine, 0.25 * len(CORES))
    watching = watch(machine)
    machine.spend(busy=0.7)
    found = end(watching, machine)
    assert found.foreign_cpu == 0
    assert "quota" in found.notes["foreign_cpu_of"]


def test_of_a_quota_that_is_taken_which_others_left_too_little_for(machine):
    quota(machine, 0.25 * len(CORES))
    watching = watch(machine)
    machine.spend(busy=0.95)
    assert end(watching, machine).foreign_cpu == pytest.approx(0.8, abs=0.02)


# ------------------------------------------------------------------------------------- processes
def test_this_process_and_its_parent_are_among_the_processes_of_this_machine():
    processes = read_processes()
    assert processes[ME].parent == os.getppid()
    assert ME in family(processes, [os.getppid()])
    assert os.getppid() not in family(processes, [ME])


# ------------------------------------------------------------------------------------- throttling
def thermal(root: Path, **counts: int) -> None:
    for name, count in counts.items():
        file = root / name / "thermal_throttle" / "core_throttle_count"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{count}\n")


def test_cores_that_lowered_their_clock_for_heat_are_told(tmp_path):
    thermal(tmp_path, cpu0=3, cpu1=5, cpu2=9)
    watching = ThermalThrottling(cores=tmp_path)
    watching.begin([], HERE)
    thermal(tmp_path, cpu0=4, cpu1=12)
    assert watching.end().throttled == ("2 core(s) lowered their clock for heat, 7 times",)


def test_old_heat_is_no_disturbance(tmp_path):
    thermal(tmp_path, cpu0=3)
    watching = ThermalThrottling(cores=tmp_path)
    watching.begin([], HERE)
    assert watching.end() == Disturbance()


def test_a_machine_that_does_not_count_heat_says_so(tmp_path):
    watching = ThermalThrottling(cores=tmp_path)
    watching.begin([], HERE)
    assert "does not tell" in watching.end().notes["cpu_heat"]


@pytest.mark.parametrize(
    ("lines", "folder", "unit"),
    [("0::/a\n", "a", "throttled_usec 2{}00000"), ("3:cpu:/a\n", "cpu/a", "throttled_time 2{}e8")],
)
def test_a_quota_that_held_the_server_back_is_noted_and_no_throttling(
    tmp_path, lines, folder, unit
):
    group = tmp_path / "cgroup" / folder
    group.mkdir(parents=True)
    (tmp_path / str(ME)).mkdir()
    (tmp_path / str(ME) / "cgroup").write_text(lines)
    watching = QuotaThrottling(proc=tmp_path, cgroups=tmp_path / "cgroup")

    def held_back(times: int, tenths: int) -> None:
        name, value = unit.format(tenths).split()
        (group / "cpu.stat").write_text(f"nr_throttled {times}\n{name} {int(float(value))}\n")

    held_back(4, 1)
    watching.begin([ME], HERE)
    held_back(9, 6)
    found = watching.end()
    assert found.throttled == ()
    assert found.notes == {
        "cpu_quota": "a control group's quota held it back 5 times, 0.50 s in all"
    }


def test_disturbances_of_several_watches_come_together():
    one = Disturbance(foreign_cpu=0.1, throttled=("hot",), notes={"a": "x"})
    two = Disturbance(foreign_gpu=(9, 4), throttled=("hotter",), notes={"b": "y"})
    assert combined([one, two]) == Disturbance(
        foreign_cpu=0.1,
        foreign_gpu=(4, 9),
        throttled=("hot", "hotter"),
        notes={"a": "x", "b": "y"},
    )
    assert combined([]).foreign_cpu is None
