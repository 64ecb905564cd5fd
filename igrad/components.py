"""From a model to its components: which parameter, or part of one, is the `q` of layer 3?

The map goes by structure. A block is an element of an outermost `nn.ModuleList` that holds attention; attention is a
module whose own leaves are q, k and v (or a fused form); everything else in the block that ends in the leaves of a
feed-forward network is fc1 or fc2. Leaf names are compared whole, so `out_proj` is o inside attention and nothing
elsewhere. A model that names its leaves otherwise is taught by the `patterns` of its yaml.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from igrad import fused
from igrad.interfaces import View, whole

KINDS = ("q", "k", "v", "o", "fc1", "fc2")
FUSED = {  # what a pattern may say of a fused weight whose attention class is not known
    "qkv": fused.stacked,  # all q, then all k, then all v
    "qkv_heads": fused.per_head,  # q, k, v of one key-value head after the other
}
NONE = "none"  # a pattern may also say: known, and of no component

UNEXPLAINED = 0.1  # share of the block weights that may map nowhere for no known reason before it is an error


def table(**leaves: str) -> dict[str, str]:
    return {leaf: kind for kind, names in leaves.items() for leaf in names.split()}


ATTENTION = table(
    q="q_proj query q_lin query_proj q_attn wq to_q q q_a_proj q_b_proj",
    k="k_proj key k_lin key_proj wk to_k k",
    v="v_proj value v_lin value_proj wv to_v v",
    o="o_proj out_proj dense c_proj proj wo Wo o out_lin output_proj to_out attn_out",
    qkv="c_attn query_key_value qkv_proj Wqkv wqkv qkv W_pack qkv_linear",
    kv="kv_b_proj",
)
FEED_FORWARD = table(
    fc1="fc1 fc_in c_fc gate_proj up_proj gate_up_proj dense_h_to_4h intermediate.dense lin1 linear1 linear_fc1 "
    "wi Wi wi_0 wi_1 w1 w3 v1 w12 input_linear ff_proj",
    fc2="fc2 fc_out c_proj down_proj dense_4h_to_h output.dense lin2 linear2 linear_fc2 wo Wo w2 output_linear ff_out",
)
CROSS = {"encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "cross_attention", "multihead_attn"}
ROUTERS = {"gate", "router", "shared_expert_gate", "wg"}
LATENT = {"kv_a_proj_with_mqa", "kv_a_proj"}


@dataclass(frozen=True)
class ComponentMap:
    views: list[View]  # every trainable parameter exactly once, in named_parameters order
    other: dict[str, str]  # parameters of two or more axes in a block that map to no component -> why
    share: float  # of the blocks' trainable elements, those in a component; in [0, 1]
    components: list[str]  # by stack, layer and kind; `embed` first and `head` last
    numel: dict[str, int]  # elements per component

    def describe(self) -> str:
        text = f"{len(self.components)} components hold {self.share:.1%} of the trainable weights in the blocks"
        if not self.other:
            return text
        reasons = Counter(self.other.values())
        return text + "; outside: " + ", ".join(f"{number} × {why}" for why, number in reasons.items())


@dataclass(frozen=True)
class Block:
    path: str  # "model.layers.3"
    name: str  # "3" or "decoder.3"
    module: nn.Module


@dataclass(frozen=True)
class Names:
    """Leaf name -> kind, inside attention and elsewhere in a block; patterns first."""

    attention: dict[str, str]
    feed_forward: dict[str, str]

    def is_attention(self, module: nn.Module) -> bool:
        leaves = [name for name, _ in module.named_children()]
        leaves += [bare(name) for name, _ in module.named_parameters(recurse=False)]
        kinds = {self.attention.get(leaf) for leaf in leaves}
        return (
            isinstance(module, nn.MultiheadAttention)
            or not kinds.isdisjoint({"qkv", "qkv_heads"})
            or ("q" in kinds and ({"k", "v"} <= kinds or "kv" in kinds))
        )

    def has(self, module: nn.Module, kind: str) -> bool:
        return any(
            (hit := look_up(name.split("."), self.feed_forward)) and hit[0] == kind
            for name, _ in module.named_parameters()
        )


def bare(name: str) -> str:
    """`gate_up_proj_bias` and `in_proj_weight` are parameters of `gate_up_proj` and `in_proj`."""
    return name.removesuffix("_bias").removesuffix("_weight")


def look_up(path: list[str], leaves: dict[str, str]) -> tuple[str, int] | None:
    """Kind and position of the innermost known leaf; whatever wraps it (`base_layer`, `lora_A.default`) is passed."""
    for end in range(len(path), 0, -1):
        for name in (".".join(path[max(end - 2, 0) : end]), bare(path[end - 1])):
            if name in leaves:
                return leaves[name], end - 1
    return None


# --------------------------------------------------------------------------------------------- structure


def stacks(
    module: nn.Module, is_block: Callable[[nn.Module], bool], path: str = ""
) -> Iterator[tuple[str, nn.ModuleList]]:
    """Path and list of the outermost lists in which some element is a block (hybrids have layers of other kinds)."""
    for name, child in module.named_children():
        here = f"{path}{name}"
        if isinstance(child, nn.ModuleList) and any(is_block(element) for element in child):
            # Hierarchical vision towers: a list of stages, each with its own list of blocks.
            inner = [
                (f"{here}.{index}.{below}", blocks)
                for index, stage in enumerate(child)
                for below, blocks in stacks(stage, is_block)
                if all(is_block(block) for block in blocks) and len({type(block) for block in blocks}) == 1
            ]
            yield from inner or [(here, child)]
        else:
            yield from stacks(child, is_block, f"{here}.")


def find_blocks(model: nn.Module, names: Names) -> list[Block]:
    """All blocks in module order, named by layer; by stack and layer where there is more than one stack."""
    found = list(stacks(model, lambda module: bool(find_attention(module, names))))
    # A model without attention still has blocks if its leaves, or patterns, say so.
    found = found or list(stacks(model, lambda module: names.has(module, "fc1")))
    paths = [path.split(".") for path, _ in found]
    for prefix_length in count(1):
        prefixes = [shorten(path, paths, prefix_length) for path in paths]
        if len(set(prefixes)) == len(prefixes):
            break
    return [
        Block(f"{path}.{index}", f"{prefix}.{index}" if len(found) > 1 else str(index), block)
        for (path, blocks), prefix in zip(found, prefixes, strict=True)
        for index, block in enumerate(blocks)
    ]


def shorten(path: list[str], paths: list[list[str]], length: int) -> str:
    """The first `length` words of a path after those that all paths share."""
    shared = next((i for i, words in enumerate(zip(*paths, strict=False)) if len(set(words)) > 1), 0)
    return ".".join(path[shared : shared + length])


def find_attention(block: nn.Module, names: Names) -> dict[str, nn.Module]:
    """Path -> module of the outermost attention modules of a block."""
    found: dict[str, nn.Module] = {}
    for path, module in block.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if path and not inside and names.is_attention(module):
            found[path] = module
    return found


@dataclass(frozen=True)
class Attention:
    path: str  # of everything that belongs to it, relative to the block: "attention" for BERT's attention.self
    sub: str  # "", "cross.", or its own name where a block has several
    module: nn.Module  # owns the leaves and the head counts


def attentions(block: nn.Module, names: Names) -> list[Attention]:
    cores = find_attention(block, names)
    found: list[Attention] = []
    for core, module in cores.items():
        words = core.split(".")
        region = core
        # The output projection may sit beside the module with q, k and v: grow while nothing else is taken in.
        for end in range(len(words) - 1, 0, -1):
            wider = ".".join(words[:end])
            alone = sum(other == wider or other.startswith(f"{wider}.") for other in cores) == 1
            if not alone or names.has(block.get_submodule(wider), "fc1"):
                break
            region = wider
        cross = not CROSS.isdisjoint(words) or getattr(module, "is_cross_attention", False) is True
        taken = {attention.sub for attention in found}
        sub = "cross." if cross else ""
        found.append(Attention(region, sub if sub not in taken else f"{region.replace('.', '_')}.", module))
    return found


def ancestors(block: nn.Module, path: list[str]) -> list[nn.Module]:
    modules = [block]
    for word in path[:-1]:
        modules.append(getattr(modules[-1], word))
    return modules


# ----------------------------------------------------------------------------------------------- mapping


def map_components(model: nn.Module, patterns: dict[str, str] | None = None, embeddings: bool = False) -> ComponentMap:
    """Views and components of a model's trainable parameters.

    `patterns` maps a leaf module's name (or `parent.leaf`) to its kind, before anything the structure says: q k v o
    fc1 fc2, qkv or qkv_heads for a fused weight, none for a weight that is meant to have no component. `embeddings`
    makes `embed` (embedding tables) and `head` (an untied output head) components.

    ValueError when the model has no blocks, when more than 10 % of the block weights map nowhere for no known reason,
    or when a pattern is wrong.
    """
    names = check_patterns(model, patterns or {})
    blocks = find_blocks(model, names)
    if not blocks:
        leaves = collapse([name for name, parameter in model.named_parameters() if parameter.ndim > 1])
        raise ValueError(f"{type(model).__name__} has no list of blocks with attention; {advice(leaves)}")
    mapper = Mapper(model, names, blocks, embeddings)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            mapper.add(name, parameter)
    return mapper.result()


class Mapper:
    """Collects the views of one model, parameter by parameter."""

    def __init__(self, model: nn.Module, names: Names, blocks: list[Block], embeddings: bool):
        self.model, self.names, self.embeddings = model, names, embeddings
        self.blocks = {block.path: block for block in blocks}
        self.attentions = {block.path: attentions(block.module, names) for block in blocks}
        head = getattr(model, "get_output_embeddings", lambda: None)()
        self.head = {id(parameter) for parameter in head.parameters()} if isinstance(head, nn.Module) else set()
        self.views: list[View] = []
        self.other: dict[str, str] = {}
        self.unexplained: dict[str, int] = {}
        self.num_in_blocks = 0

    def add(self, name: str, parameter: nn.Parameter) -> None:
        words = name.split(".")
        path = next((p for end in range(len(words)) if (p := ".".join(words[:end])) in self.blocks), None)
        if path is None:
            self.keep(name, parameter, self.outside(words, parameter))
            return
        self.num_in_blocks += parameter.numel()
        self.in_block(self.blocks[path], name, words[path.count(".") + 1 :], parameter)

    def outside(self, words: list[str], parameter: nn.Parameter) -> str | None:
        if not self.embeddings:
            return None
        chain = ancestors(self.model, words)
        if any(isinstance(getattr(module, "base_layer", module), nn.Embedding) for module in chain):
            return "embed"
        return "head" if id(parameter) in self.head else None

    def in_block(self, block: Block, name: str, words: list[str], parameter: nn.Parameter) -> None:
        chain = ancestors(block.module, words)
        words = unwrapped(words, chain)
        local = ".".join(words)
        attention = next((a for a in self.attentions[block.path] if local.startswith(f"{a.path}.")), None)
        hit = look_up(words, self.names.attention if attention else self.names.feed_forward)
        kind = hit[0] if hit else None
        if kind == NONE:
            self.keep(name, parameter, None, "left out by a pattern")
        elif kind in KINDS:
            self.keep(name, parameter, f"{block.name}.{attention.sub if attention else ''}{kind}")
        elif kind is not None:
            assert attention is not None and hit is not None
            self.split(block, attention, name, parameter, kind, words[hit[1] :])
        elif isinstance(attention and attention.module, nn.MultiheadAttention) and bare(words[-1]) == "in_proj":
            self.split(block, attention, name, parameter, "qkv", words[-1:])
        else:
            why = known_reason(words, chain)
            place = "attention" if attention else "the feed-forward part"
            self.keep(name, parameter, None, why or f"a name that is not known in {place}", explained=why is not None)

    def split(self, block: Block, attention: Attention, name: str, parameter: nn.Parameter, kind: str,
              words: list[str]) -> None:  # fmt: skip
        """A fused weight, its bias, or the adapter matrix that writes its outputs."""
        if any(word.startswith("lora_A") for word in words):
            self.keep(name, parameter, None, "an adapter's input matrix that q, k and v share")
            return
        leaf = bare(words[0])
        conv1d = isinstance(self.owner(name), Conv1D) and parameter.ndim == 2
        rows = parameter.shape[-1] if conv1d else parameter.shape[0]
        by_pattern = FUSED[kind](attention.module) if leaf in self.names.feed_forward and kind in FUSED else None
        base = getattr(getattr(attention.module, leaf, None), "base_layer", getattr(attention.module, leaf, None))
        found = by_pattern or fused.layout(attention.module, leaf, rows, isinstance(base, Conv1D))
        if found is None or not found.fits(rows):
            why = f"fused q, k and v in an order that is not known for {type(attention.module).__name__}"
            self.keep(name, parameter, None, why, explained=False)
            return
        for part, (outputs, cut) in found.parts(rows, conv1d).items():
            shape = (outputs, parameter.numel() // rows) if parameter.ndim > 1 else (outputs,)
            self.views.append(View(f"{name}:{part}", f"{block.name}.{attention.sub}{part}", name, shape, cut))

    def keep(self, name: str, parameter: nn.Parameter, component: str | None, why: str = "",
              explained: bool = True) -> None:  # fmt: skip
        shape, part = normalised(self.owner(name), name, parameter)
        self.views.append(View(name, component, name, shape, part))
        if why and parameter.ndim > 1:
            self.other[name] = why
            if not explained:
                self.unexplained[name] = parameter.numel()

    def owner(self, name: str) -> nn.Module:
        return self.model.get_submodule(name.rpartition(".")[0])

    def result(self) -> ComponentMap:
        numel: dict[str, int] = {}
        for component in ["embed", *sorted_components(self.views, list(self.blocks.values())), "head"]:
            size = sum(view.numel for view in self.views if view.component == component)
            if size:
                numel[component] = size
        mapped = sum(size for component, size in numel.items() if component not in ("embed", "head"))
        total = self.num_in_blocks
        if total and (sum(self.unexplained.values()) > UNEXPLAINED * total or not mapped):
            lost = sum(self.unexplained.values()) / total
            raise ValueError(
                f"{lost:.0%} of the block weights of {type(self.model).__name__} map to no component "
                f"(at most {UNEXPLAINED:.0%} may); {advice(collapse(list(self.unexplained or self.other)))}"
            )
        return ComponentMap(self.views, self.other, mapped / total if total else 0.0, list(numel), numel)


def unwrapped(words: list[str], chain: list[nn.Module]) -> list[str]:
    """An adapter on a bare parameter (peft's ParamWrapper) names it in an attribute: put that into the path."""
    found: list[str] = []
    for word, module in zip(words, chain, strict=True):
        target = getattr(module, "parameter_name", None)
        if isinstance(target, str) and word != "base_layer":
            found.append(target)
        found.append(word)
    return found


def normalised(
    owner: nn.Module, name: str, parameter: nn.Parameter
) -> tuple[tuple[int, ...], Callable[[Tensor], Tensor]]:
    """Shape (out, in) or (n,) of a whole parameter, and the view whose row-major order it describes."""
    if parameter.ndim == 0:
        return (1,), as_vector
    if parameter.ndim == 1:
        return tuple(parameter.shape), whole
    is_weight = not name.endswith("bias")
    # Some expert classes keep (experts, in, out) and say so.
    stored_transposed = isinstance(owner, Conv1D) or (parameter.ndim == 3 and getattr(owner, "is_transposed", False))
    shape = parameter.shape
    if is_weight and stored_transposed:
        return (parameter.numel() // shape[-2], shape[-2]), fused.transpose
    rows = shape[0] * shape[1] if parameter.ndim == 3 else shape[0]  # experts one below the other
    return (rows, parameter.numel() // rows), whole


def as_vector(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(0)


# ------------------------------------------------------------------------------------------------- words


def known_reason(words: list[str], chain: list[nn.Module]) -> str | None:
    """Why a parameter of a block rightly belongs to no component; None if there is no such reason."""
    if any(word in ROUTERS and hasattr(module, "experts") for word, module in zip(words, chain, strict=False)):
        return "a router of experts"
    if not LATENT.isdisjoint(words):
        return "a compressed projection that k and v share"
    if isinstance(chain[-1], nn.Embedding):
        return "a table of position biases"
    if any(isinstance(child, (nn.Conv1d, nn.Conv2d)) for module in chain[1:] for child in (module, *module.children())):
        return "a convolutional or recurrent mixer, which has no q, k or v"
    return None


def collapse(names: list[str]) -> list[str]:
    """Names with layer numbers as `*`, each once."""
    return list(dict.fromkeys(".".join("*" if word.isdigit() else word for word in n.split(".")) for n in names))


def advice(names: list[str]) -> str:
    leaf = next((name.split(".")[-2] for name in names if name.count(".")), "my_proj")
    return (
        f"unmapped: {', '.join(names)}. Say what they are in the model's yaml, for example "
        f"`patterns: {{{leaf}: fc1}}` (kinds: {', '.join((*KINDS, *FUSED, NONE))})"
    )


def check_patterns(model: nn.Module, patterns: dict[str, str]) -> Names:
    kinds = (*KINDS, *FUSED, NONE)
    for leaf, kind in patterns.items():
        if kind not in kinds:
            close = difflib.get_close_matches(str(kind), kinds, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise ValueError(f"patterns: kind of '{leaf}' must be one of {', '.join(kinds)}, got '{kind}'{hint}")
        if not any(look_up(name.split("."), {leaf: kind}) for name, _ in model.named_parameters()):
            raise ValueError(f"patterns: {type(model).__name__} has no module named '{leaf}'")
    return Names({**ATTENTION, **patterns}, {**FEED_FORWARD, **patterns})


def sorted_components(views: list[View], blocks: list[Block]) -> list[str]:
    """Components of the blocks by layer, then self-attention before cross before the rest, then kind."""
    layer = {block.name: index for index, block in enumerate(blocks)}

    def key(component: str) -> tuple[int, int, str, int]:
        owner = max((name for name in layer if component.startswith(f"{name}.")), key=len)
        sub, _, kind = component.removeprefix(f"{owner}.").rpartition(".")
        is_fc = kind.startswith("fc")
        return layer[owner], 2 if is_fc else int(bool(sub)), sub, KINDS.index(kind)

    return sorted({v.component for v in views if v.component not in (None, "embed", "head")}, key=key)
