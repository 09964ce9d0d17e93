"""The README's torch program, as it stands, as the first of four processes."""

import re
from pathlib import Path

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

README = Path(__file__).parents[2] / "README.md"


def test_the_torch_program_of_the_readme_runs(capsys):
    (text,) = re.findall(r"<!-- file: step.py -->\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        exec(compile(text, "step.py", "exec"), names)
    finally:
        dist.destroy_process_group()
    assert "on h100-dgx (machine=1 x gpu=4)" in capsys.readouterr().out
    assert all(weight.grad is not None for weight in names["model"].parameters())
