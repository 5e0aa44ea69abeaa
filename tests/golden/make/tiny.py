"""A character tokenizer and a random two-layer Qwen2, both built in memory, for the makers that need a model."""

import tempfile

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CHARS = "0123456789+-=? abcdefghijklmnopqrstuvwxyz<>/\n"
LATIN = "".join(map(chr, [10, *range(32, 127), *range(161, 256)]))
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tiny_tokenizer(chars: str = CHARS, special: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """One token a character; ids 0, 1, 2 are pad, end and unknown."""
    words = ["<pad>", "<eos>", "<unk>", *special, *chars]
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tok.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tok,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        chat_template=CHAT,
        extra_special_tokens=list(special),
    )


def tiny_model(tok: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tok),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():  # away from the uniform distribution, so that entropy differs from log(vocabulary)
        model.lm_head.weight *= 8.0
    # Through a folder, because TRL builds the reference model (beta > 0) from the model's path.
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    return Qwen2ForCausalLM.from_pretrained(folder)
