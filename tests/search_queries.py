"""What readers type into the search, and where it should lead first: an address, or a list of those that are right."""

from __future__ import annotations

GLOSSARY = "reference/glossary/#"

QUERIES: dict[str, str | tuple[str, ...]] = {
    # questions
    "what is TTFT": f"{GLOSSARY}ttft",
    "what is ttft?": f"{GLOSSARY}ttft",
    "What does ITL mean": f"{GLOSSARY}itl",
    "define tpot": f"{GLOSSARY}tpot",
    "meaning of MBU": f"{GLOSSARY}mbu",
    "what is a block table": f"{GLOSSARY}block-table",
    "what is preemption": f"{GLOSSARY}preemption",
    "what's copy on write": f"{GLOSSARY}copy-on-write",
    "how much gpu memory do I need": "foundations/kv-cache/",
    "how much memory does the kv cache take": "foundations/kv-cache/",
    "how many users fit on a gpu": "foundations/kv-cache/",
    "how do I install this": "orientation/how-to-run/",
    "how fast can a model decode": "hardware/decode-ceiling/",
    "why is my first token slow": "foundations/prefill-and-decode/",
    "which gpu should I use": "hardware/decode-ceiling/",
    # two things compared
    "top p vs min p": "foundations/sampling/",
    "min-p versus top-p": "foundations/sampling/",
    "top k vs top p": "foundations/sampling/",
    "temperature vs top_p": "foundations/sampling/",
    "prefill vs decode": "foundations/prefill-and-decode/",
    "difference between prefill and decode": "foundations/prefill-and-decode/",
    "static vs continuous batching": "scheduling/batching/",
    "swap vs recompute": "scheduling/preemption/",
    "medusa vs eagle": "doing-less/token-trees/",
    # other names
    "json mode": "models/structured-output/",
    "function calling": "models/structured-output/",
    "tool use": "models/structured-output/",
    "guided decoding": "models/structured-output/",
    "response_format": "models/structured-output/",
    "regex": "models/structured-output/",
    "prompt caching": "kv-cache/prefix-caching/",
    "system prompt": "kv-cache/prefix-caching/",
    "RadixAttention": "kv-cache/prefix-caching/",
    "vram": "foundations/kv-cache/",
    "out of memory": "foundations/kv-cache/",
    "in-flight batching": "scheduling/batching/",
    "batch size": "scheduling/batching/",
    "max_num_batched_tokens": "scheduling/chunked-prefill/",
    "draft model": "doing-less/speculative-decoding/",
    "assisted generation": "doing-less/speculative-decoding/",
    "prompt lookup": "doing-less/speculative-decoding/",
    "multi-token prediction": "doing-less/token-trees/",
    "cpu offload": "scheduling/preemption/",
    "repetition penalty": "foundations/sampling/",
    "nucleus sampling": "foundations/sampling/",
    "deterministic output": "foundations/sampling/",
    "tokens per second": "hardware/decode-ceiling/",
    "memory bandwidth": "hardware/decode-ceiling/",
    "quantization": "hardware/decode-ceiling/",
    "memory fragmentation": "kv-cache/paged-attention/",
    # terms without a page of their own
    "gqa": f"{GLOSSARY}gqa",
    "grouped query attention": ("foundations/kv-cache/", f"{GLOSSARY}gqa"),
    "mla": f"{GLOSSARY}mla",
    "tensor parallel": f"{GLOSSARY}tensor-parallelism",
    "tensor parallelism": f"{GLOSSARY}tensor-parallelism",
    "multi gpu": f"{GLOSSARY}tensor-parallelism",
    "MoE": f"{GLOSSARY}mixture-of-experts",
    "p99": f"{GLOSSARY}p99",
    "rope": f"{GLOSSARY}rope",
    "bfloat16": f"{GLOSSARY}bf16",
    "lru": f"{GLOSSARY}lru",
    # typing errors
    "preemtion": "scheduling/preemption/",
    "premption": "scheduling/preemption/",
    "speculative decodign": "doing-less/speculative-decoding/",
    "pagedatention": "kv-cache/paged-attention/",
    "paged atention": "kv-cache/paged-attention/",
    "prefx caching": "kv-cache/prefix-caching/",
    "chuncked prefill": "scheduling/chunked-prefill/",
    "strucutred output": "models/structured-output/",
    "temprature": f"{GLOSSARY}temperature",
    "continous batching": ("scheduling/batching/", f"{GLOSSARY}continuous-batching"),
    "bandwith": "hardware/decode-ceiling/",
    "what is grammer": ("models/structured-output/", f"{GLOSSARY}context-free-grammar"),
    # the words of a title, together or apart
    "kv cache": "foundations/kv-cache/",
    "kvcache": "foundations/kv-cache/",
    "KV-caches": "foundations/kv-cache/",
    "paged attention": "kv-cache/paged-attention/",
    "sampling": "foundations/sampling/",
    "token trees": "doing-less/token-trees/",
    "decode ceiling": "hardware/decode-ceiling/",
    "chunked prefill": "scheduling/chunked-prefill/",
    "batching": "scheduling/batching/",
    "structured output": "models/structured-output/",
    "glossary": "reference/glossary/",
}


def right(query: str, found: str) -> bool:
    """Whether ``found``, an address below the site's root, is where the query should lead."""
    wanted = QUERIES[query]
    return found in ((wanted,) if isinstance(wanted, str) else wanted)
