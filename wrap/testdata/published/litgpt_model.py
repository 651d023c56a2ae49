"""Writes what LitGPT's commands fine-tune: a small model with random weights, a tokenizer of bytes, and a data set, into the folder that is named."""

import json
import random
import sys
from pathlib import Path

import torch
from litgpt import GPT, Config
from litgpt.utils import save_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|endoftext|>"


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True)
    torch.manual_seed(0)
    config = Config(name="pythia-14m", block_size=256, n_layer=4, n_embd=128, n_head=4, padded_vocab_size=512, vocab_size=257)
    torch.save(GPT(config).state_dict(), out / "lit_model.pth")
    save_config(config, out)

    tokens = [END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({"bos_token": END, "eos_token": END, "tokenizer_class": "GPTNeoXTokenizer"}))
    (out / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 0}))

    choose = random.Random(0)

    def text() -> str:
        return " ".join(choose.choice("abcdefgh") * choose.randint(2, 8) for _ in range(20))

    (out / "data.json").write_text(json.dumps([{"instruction": text(), "output": text()} for _ in range(200)]))


if __name__ == "__main__":
    main()
