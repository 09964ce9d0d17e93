"""What plans and files call a model."""

import json

import pytest

from shardplan.models import configured, title_of_model

HASH = "0123456789abcdef0123456789abcdef01234567"
KEYS = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 96, "max_position_embeddings": 64}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ("models/resnet50.onnx", "resnet50"),
        ("transformer:llama3-70b,batch=4", "llama3-70b"),
        ("my_pkg.nets:build", "nets.build"),
        ("nowhere/config.json", "config"),
    ],
)
def test_titles_of_what_need_not_be_read(given, title):
    assert title_of_model(given) == title


@pytest.mark.parametrize(
    ("path", "keys", "title"),
    [
        ("tiny-llama/config.json", {}, "tiny-llama"),
        ("tiny-llama.json", {}, "tiny-llama"),
        (f"{HASH}/config.json", {}, "llama"),
        (f"{HASH}/config.json", {"_name_or_path": "org/tiny"}, "tiny"),
        ("config.json", {"_name_or_path": "/"}, "llama"),
        ("../here/config.json", {}, "here"),
    ],
)
def test_a_configuration_is_called_by_its_folder_or_by_what_it_says(tmp_path, monkeypatch, path, keys, title):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    file = tmp_path / "here" / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(KEYS | keys))
    assert title_of_model(path) == title
    assert configured(path, {}).name == title
