"""Files of SQLite as `nsys export --type sqlite --include-blobs=true` writes them, as far as calibration reads them."""

import sqlite3
import struct
from collections import defaultdict
from pathlib import Path

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, gridX INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
    nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, text TEXT, globalTid INTEGER,
    endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, binaryData BLOB);
CREATE TABLE NVTX_PAYLOAD_SCHEMAS (
    domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER, flags INTEGER, numEntries INTEGER,
    payloadSize INTEGER, alignTo INTEGER);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (
    domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT,
    description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER);
"""
PUSH_POP, UINT64, SIZE, INT = 59, 18, 22, 5
MOVES, MAKES = 0x1000001, 0x1000002
"""Schemas of NCCL's calls: those that move something, and those that make a communicator."""
ENTRIES = (
    (MOVES, 0, UINT64, "NCCL communicator ID", None), (MOVES, 1, SIZE, "Message size [bytes]", 8),
    (MAKES, 0, UINT64, "NCCL communicator ID", None), (MAKES, 1, INT, "No. of ranks", 8),
    (MAKES, 2, INT, "Rank", 12), (MAKES, 3, INT, "CUDA device", 16),
)  # fmt: skip
CALLS = {
    "allreduce": "ncclAllReduce", "_allgather_base": "ncclAllGather", "_reduce_scatter_base": "ncclReduceScatter",
}  # fmt: skip
NS = 1_000_000_000


class Export:
    """What is written into one file. Times are in seconds."""

    def __init__(self, path: Path) -> None:
        self.opened = sqlite3.connect(path)
        self.opened.executescript(SCHEMA)
        for number, index, kind, name, offset in ENTRIES:
            row = (1, number, index, None, kind, name, None, None, offset)
            self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", row)
        self.strings: dict[str, int] = {}
        self.correlations: dict[int, int] = defaultdict(int)

    def add(self, table: str, row: tuple) -> None:
        self.opened.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def text(self, value: str) -> int:
        if value not in self.strings:
            self.strings[value] = len(self.strings) + 1
            self.add("StringIds", (self.strings[value], value))
        return self.strings[value]

    def launch(self, thread: int, at: float) -> int:
        """A call that launches a kernel; its correlation number, which every process counts for itself."""
        process = thread >> 24 << 24
        self.correlations[process] += 1
        number = self.correlations[process]
        row = (round(at * NS), round(at * NS) + 4000, 0, thread, number, self.text("cudaLaunchKernel_v7000"), 0)
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", row)
        return number

    def kernel(self, name, start, seconds, thread, launched, *, device=0, node=None) -> None:
        names = self.text(name), self.text(name.split("<")[0])
        number = self.launch(thread, launched)
        times = round(start * NS), round((start + seconds) * NS)
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", (*times, device, 1, 7, number, thread >> 24 << 24, *names, 1, node))

    def copy(self, size, start, seconds, thread, kind, device=0) -> None:
        times = round(start * NS), round((start + seconds) * NS)
        row = (*times, device, self.launch(thread, start), thread >> 24 << 24, size, kind)
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", row)

    def range(self, text, start, end, thread, payload=None, kind=PUSH_POP, registered=False) -> None:
        told = (None, self.text(text)) if registered else (text, None)
        row = (round(start * NS), round(end * NS), kind, None, told[0], thread, None, told[1], int(registered), payload)
        self.add("NVTX_EVENTS", row)

    def call(self, name, at, thread, communicator, size) -> None:
        """A call of NCCL that moves something."""
        self.range(name, at, at + 1e-6, thread, payload(MOVES, struct.pack("<QQ", communicator, size)), registered=True)

    def communicator(self, number, ranks, thread, at=0.0) -> None:
        made = payload(MAKES, struct.pack("<Qiii", number, ranks, 0, 0))
        self.range("ncclCommInitRankConfig", at, at + 1e-6, thread, made, registered=True)

    def close(self) -> None:
        self.opened.commit()
        self.opened.close()


def payload(schema: int, content: bytes) -> bytes:
    """A payload as the report keeps it, behind its header."""
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(content), 32 + len(content)) + content


def operator_text(name: str, shapes) -> str:
    """As `emit_nvtx(record_shapes=True)` writes an operator."""
    return f"{name}, seq = 7, op_id = 12, sizes = {[list(each) for each in shapes]}, input_op_ids = [[3,0], [4,0]]"


def exported(document: dict, path: Path, thread: int = (77 << 24) + 5) -> Path:
    """The run of a trace of `torch.profiler`, as nsys has it: every operator within a range of its own."""
    export, events = Export(path), document["traceEvents"]
    operators = {event["args"]["External id"]: event for event in events if event["cat"] == "cpu_op"}
    started = defaultdict(list)
    clock, communicators = 1.0, {}
    for event in events:
        args = event.get("args", {})
        if event["cat"] == "kernel" and "Collective name" in args:
            ranks = args["Group size"]
            if ranks not in communicators:
                communicators[ranks] = 100 + len(communicators)
                export.communicator(communicators[ranks], ranks, thread, clock - 0.5)
            elements = args["In msg nelems"] // (ranks if "scatter" in args["Collective name"] else 1)
            export.call(CALLS[args["Collective name"]], clock, thread, communicators[ranks], 2 * elements)
            _run(export, event, "ncclDevKernel_Any_RING_LL(ncclDevKernelArgsStorage<4096ul>)", thread, clock + 5e-6)
        elif event["cat"] == "kernel":
            started[args.get("External id")].append(event)
        clock += 1e-5
    for number, kernels in started.items():
        if number in operators:
            made = operators[number]
            text = operator_text(made["name"], made["args"]["Input Dims"])
            export.range("forward", clock, clock + 1e-4, thread)
            export.range(text, clock + 1e-6, clock + 9e-5, thread)
        for place, event in enumerate(kernels):
            _run(export, event, event["name"] + "<c10::BFloat16>", thread, clock + 2e-6 * (place + 1))
        clock += 1e-3
    export.close()
    return path


def _run(export: Export, event: dict, name: str, thread: int, launched: float) -> None:
    export.kernel(name, event["ts"] / 1e6, event["dur"] / 1e6, thread, launched)
