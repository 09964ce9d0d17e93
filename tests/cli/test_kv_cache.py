"""`--kv-cache` and described models from the command line."""

import json
import re

MODEL = "transformer:layers=2,hidden=512,heads=8,vocab=1024,seq=128,batch=8"


def solved(shardplan, *more):
    run = shardplan("solve", MODEL, "--mesh", "1x2", "--mode", "inference", "--json", *more)
    assert run.code == 0, run.err
    return json.loads(run.out)["result"]


def test_room_is_kept_for_the_cache(shardplan, folder):
    without, beside = solved(shardplan), solved(shardplan, "--kv-cache", "tokens=65536")
    assert without["plan"] == "plans/transformer.1x2.plan.json"
    more = beside["summary"]["memory_bytes"] - without["summary"]["memory_bytes"]
    assert more == 2 * 2 * 8 * 64 * 65536 * 2 // 2


def test_what_does_not_fit_is_called_the_cache(shardplan, folder):
    """64 MiB of keys and values, half of them on each device; less of them would fit."""
    asked = ("--mode", "inference", "--kv-cache", "tokens=16384", "--memory-limit", "20 MiB")
    run = shardplan("solve", MODEL, "--mesh", "1x2", *asked)
    assert run.code == 3
    assert " + KV cache 32 = " in run.err
    assert re.search(r"most of it in\n +32 MiB  KV cache of \S+ ×2\n", run.err)


def test_a_cache_that_cannot_be_read(shardplan, folder):
    for text in ("65536", "tokens=many", "tokens=0", "words=3"):
        run = shardplan("solve", MODEL, "--mesh", "1x2", "--kv-cache", text)
        assert run.code == 2
        assert f"error[bad-cache]: --kv-cache '{text}' cannot be read" in run.err
        assert "hint: write how many tokens of all sequences together, such as --kv-cache tokens=65536" in run.err


def test_a_model_that_nobody_knows(shardplan, folder):
    run = shardplan("solve", "transformer:lama3-8b", "--mesh", "1x2", "-d", "sequence=8")
    assert run.code == 2
    assert "error[unknown-model]: there is no transformer called 'lama3-8b'\nhint: did you mean 'llama3-8b'?" in run.err
    assert "error[bad-description]: transformer: 'sequence' is no size of a transformer" in run.err


def test_the_file_is_called_after_the_model(shardplan, folder):
    run = shardplan("solve", "transformer:gpt-1.7b,layers=2,batch=8,seq=64", "--mesh", "1x2", "--json")
    assert json.loads(run.out)["result"]["plan"] == "plans/gpt-1.7b.1x2.plan.json"
