"""The models of `tiny_models` as people write them in torch: same names, same numbers, torch's own operations."""

from __future__ import annotations

import torch
from tiny_models import NEVER, Sizes, Tiny, rotary_tables
from torch import Tensor, nn
from torch.nn import functional


class Norm(nn.Module):
    """RMSNorm as Llama writes it, step by step; `fused` by torch's kernel."""

    def __init__(self, width: int, *, fused: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return functional.rms_norm(x, self.weight.shape, self.weight, 1e-5)
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


attend = functional.scaled_dot_product_attention
FORMS = {
    "causal": lambda q, k, v, _mask: attend(q, k, v, is_causal=True),
    "by place": lambda q, k, v, _mask: attend(q, k, v, None, 0.0, True),
    "scaled": lambda q, k, v, _mask: attend(2 * q, k, v, is_causal=True, scale=0.5 * q.shape[-1] ** -0.5),
    "added mask": lambda q, k, v, mask: attend(q, k, v, attn_mask=mask, dropout_p=0.0),
    "allowing mask": lambda q, k, v, mask: attend(q, k, v, attn_mask=mask == 0),
    "dropping": lambda q, k, v, _mask: attend(q, k, v, dropout_p=0.5, is_causal=True),
}
"""Ways in which people call the kernel, `dropping` with chance, the others all the same."""


class GptAttention(nn.Module):
    def __init__(self, sizes: Sizes, *, packed: bool, fused: bool | str) -> None:
        super().__init__()
        self.sizes, self.packed, self.fused = sizes, packed, fused
        if packed:
            self.c_attn = nn.Linear(sizes.hidden, 3 * sizes.hidden)
        else:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(sizes.hidden, sizes.hidden) for _ in range(3))
        self.c_proj = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        parts = self.c_attn(x).chunk(3, -1) if self.packed else (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (part.view(batch, seq, self.sizes.heads, -1).transpose(1, 2) for part in parts)
        if self.fused:
            mixed = FORMS["causal" if self.fused is True else self.fused](q, k, v, mask)
        else:
            scores = q @ k.transpose(-2, -1) * self.sizes.width**-0.5 + mask
            mixed = functional.softmax(scores, dim=-1) @ v
        return self.c_proj(mixed.transpose(1, 2).contiguous().view(batch, seq, hidden))


class GptMlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(sizes.hidden, sizes.ffn), nn.Linear(sizes.ffn, sizes.hidden)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh")))


class GptBlock(nn.Module):
    def __init__(self, sizes: Sizes, *, packed: bool, fused: bool | str) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(sizes.hidden), nn.LayerNorm(sizes.hidden)
        self.attn, self.mlp = GptAttention(sizes, packed=packed, fused=fused), GptMlp(sizes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class GptBody(nn.Module):
    def __init__(self, sizes: Sizes, *, packed: bool, fused: bool | str) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(sizes.vocab, sizes.hidden), nn.Embedding(sizes.seq, sizes.hidden)
        self.h = nn.ModuleList(GptBlock(sizes, packed=packed, fused=fused) for _ in range(sizes.layers))
        self.ln_f = nn.LayerNorm(sizes.hidden)
        mask = torch.triu(torch.full((sizes.seq, sizes.seq), NEVER), diagonal=1)
        self.register_buffer("mask", mask[None, None], persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.size(1), device=ids.device).unsqueeze(0)
        x = self.wte(ids) + self.wpe(places)
        for block in self.h:
            x = block(x, self.mask)
        return self.ln_f(x)


class Gpt(nn.Module):
    """`tiny_gpt`. `packed`: q, k, v in one layer; `fused`: torch's attention."""

    def __init__(self, sizes: Sizes, *, tied: bool = False, packed: bool = False, fused: bool = False) -> None:
        super().__init__()
        self.transformer = GptBody(sizes, packed=packed, fused=fused)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        if tied:
            self.lm_head.weight = self.transformer.wte.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.transformer(input_ids))


class LlamaAttention(nn.Module):
    def __init__(self, sizes: Sizes, *, fused: bool) -> None:
        super().__init__()
        self.sizes, self.fused = sizes, fused
        narrow = sizes.key_heads * sizes.width
        self.q_proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(sizes.hidden, narrow, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        q = self.q_proj(x).view(batch, seq, -1, self.sizes.width).transpose(1, 2)
        k = self.k_proj(x).view(batch, seq, -1, self.sizes.width).transpose(1, 2)
        v = self.v_proj(x).view(batch, seq, -1, self.sizes.width).transpose(1, 2)
        q, k = (part * cos + rotate_half(part) * sin for part in (q, k))
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            times = self.sizes.heads // self.sizes.key_heads
            k, v = (repeat_heads(part, times) for part in (k, v))
            scores = torch.matmul(q, k.transpose(2, 3)) * self.sizes.width**-0.5 + mask
            mixed = torch.matmul(torch.softmax(scores, -1), v)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, seq, -1))


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    batch, heads, seq, width = x.shape
    if times == 1:
        return x
    return x[:, :, None].expand(batch, heads, times, seq, width).reshape(batch, heads * times, seq, width)


class LlamaMlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(sizes.hidden, sizes.ffn, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(sizes.ffn, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        wide, narrow = (sizes.experts, sizes.hidden, sizes.ffn), (sizes.experts, sizes.ffn, sizes.hidden)
        self.gate_proj, self.up_proj = nn.Parameter(torch.zeros(wide)), nn.Parameter(torch.zeros(wide))
        self.down_proj = nn.Parameter(torch.zeros(narrow))

    def forward(self, mine: Tensor) -> Tensor:
        gate = functional.silu(torch.einsum("ebsh,ehf->ebsf", mine, self.gate_proj))
        return torch.einsum("ebsh,ehf->ebsf", gate * torch.einsum("ebsh,ehf->ebsf", mine, self.up_proj), self.down_proj)


class Moe(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(sizes.hidden, sizes.experts, bias=False), Experts(sizes)

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.softmax(self.gate(x), dim=-1)
        pick = functional.one_hot(shares.argmax(-1), shares.shape[-1]).to(x.dtype)
        done = self.experts(torch.einsum("bse,bsh->ebsh", pick, x))
        return torch.einsum("ebsh,bse->bsh", done, shares * pick)


class LlamaBlock(nn.Module):
    def __init__(self, sizes: Sizes, *, moe: bool, fused: bool) -> None:
        super().__init__()
        self.input_layernorm = Norm(sizes.hidden, fused=fused)
        self.self_attn = LlamaAttention(sizes, fused=fused)
        self.post_attention_layernorm = Norm(sizes.hidden, fused=fused)
        self.mlp = Moe(sizes) if moe else LlamaMlp(sizes)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaBody(nn.Module):
    def __init__(self, sizes: Sizes, *, moe: bool, fused: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocab, sizes.hidden)
        self.layers = nn.ModuleList(LlamaBlock(sizes, moe=moe, fused=fused) for _ in range(sizes.layers))
        self.norm = Norm(sizes.hidden, fused=fused)
        cos, sin = rotary_tables(sizes.seq, sizes.width)
        self.register_buffer("cos", torch.from_numpy(cos), persistent=False)
        self.register_buffer("sin", torch.from_numpy(sin), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        mask = torch.full((ids.shape[1], ids.shape[1]), NEVER, device=ids.device).triu(1)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, mask)
        return self.norm(x)


class Llama(nn.Module):
    """`tiny_llama`, or with `moe` `tiny_moe`. `fused`: torch's attention and norm."""

    def __init__(self, sizes: Sizes, *, tied: bool = False, moe: bool = False, fused: bool = False) -> None:
        super().__init__()
        self.model = LlamaBody(sizes, moe=moe, fused=fused)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.model(input_ids))


def twin(tiny: Tiny, *, fused: bool | str = False, device: str = "cpu") -> nn.Module:
    """The torch model of a tiny graph, with the weights of its checkpoint (none on the meta device)."""
    name, tied = tiny.name, tiny.name.endswith("_tied")
    with torch.device(device):
        if name.startswith("tiny_gpt"):
            model: nn.Module = Gpt(tiny.sizes, tied=tied, packed="_fused" in name, fused=fused)
        else:
            model = Llama(tiny.sizes, tied=tied, moe=name == "tiny_moe", fused=fused)
    if device != "meta":
        weights = {key: torch.tensor(value) for key, value in tiny.weights.items()}
        missing, unexpected = model.load_state_dict(weights, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"} if tied else not missing
    return model
