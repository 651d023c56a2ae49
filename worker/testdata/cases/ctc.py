"""CTC speech model, batch first, log-probs transposed to (T, B, C) for the loss. --concat: the targets are one 1-D
tensor.
Source: "mismatch in supported batch size between benchmarking script and actual training script",
github.com/SeanNaren/deepspeech.pytorch/issues/68, 2017-05-26
Right outcome: exact pieces by utterance (loss 'mean' is a mean over utterances); with --concat the 1-D targets must
be cut at sum(target_lengths), or refused.
"""

import sys

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(2)


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.rnn, self.head = nn.Conv1d(40, 128, 5, padding=2), nn.GRU(128, 160, batch_first=True), nn.Linear(160, 600)

    def forward(self, x):
        h = torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
        return self.head(self.rnn(h)[0]).log_softmax(-1)


model = Acoustic()
opt = torch.optim.SGD(model.parameters(), lr=0.02)
limit()
for i in range(6):
    B, T = 96, 300
    frames = torch.randint(150, T + 1, (B,))
    frames[0] = T
    lens = torch.randint(5, 30, (B,))
    x, tgt = torch.randn(B, T, 40), torch.randint(1, 600, (B, 30))
    if "--concat" in sys.argv:
        tgt = torch.cat([t[:n] for t, n in zip(tgt, lens)])
    opt.zero_grad()
    logp = model(x).transpose(0, 1)
    loss = nn.functional.ctc_loss(logp, tgt, frames, lens, zero_infinity=True)
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(model)
