"""`--budget`: what a model may have, for one command."""


def test_a_command_raises_budgets_for_itself(shardplan, mlp, monkeypatch):
    monkeypatch.setenv("SHARDPLAN_MAX_RANK", "1")
    asked = ("inspect", "mlp.onnx", "--dim", "batch=64")
    assert shardplan(*asked).code == 2
    for _ in range(2):
        assert shardplan(*asked, "--budget", "rank=4", "--budget", "operators=9").code == 0
    assert shardplan(*asked).code == 2
    for text, said in (
        ("ranks=4", "there is no budget 'ranks'; there are operators, rank, elements, nesting"),
        ("rank=many", "Invalid value for '--budget': rank=many is no positive whole number"),
        ("operators=-5", "Invalid value for '--budget': operators=-5 is no positive whole number"),
        ("operators=0", "Invalid value for '--budget': operators=0 is no positive whole number"),
        ("rank", "budget 'rank' has no number: rank=N"),
    ):
        run = shardplan(*asked, "--budget", text)
        assert run.code == 2
        assert said in run.err
    monkeypatch.setenv("SHARDPLAN_MAX_RANK", "-5")
    assert "SHARDPLAN_MAX_RANK is '-5'" in shardplan(*asked).err
