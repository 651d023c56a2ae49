"""Word-level LSTM with the hidden state carried from chunk to chunk (time is dim 0, batch is dim 1).
Source: "question about on-lstm hidden states initialization", github.com/yikangshen/Ordered-Neurons/issues/13,
2019-06-03 (repackage_hidden)
Right outcome: a cut along dim 0 (time) would be wrong. Exact: cut along dim 1, or only the decoder+loss over T*B
rows. Else a refusal.
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(1)
T, B, V = 32, 128, 6000


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(V, 96), nn.LSTM(96, 128), nn.Linear(128, V)

    def forward(self, tok, state):
        y, state = self.rnn(self.emb(tok), state)
        return self.out(y.view(-1, 128)), state


text = torch.randint(V, (8 * T + 1, B)) % (torch.arange(B) * 40 + 50)
model, state = LM(), (torch.zeros(1, B, 128), torch.zeros(1, B, 128))
opt = torch.optim.SGD(model.parameters(), lr=2.0)
limit()
for i in range(8):
    x, y = text[i * T : (i + 1) * T], text[i * T + 1 : (i + 1) * T + 1]
    state = tuple(s.detach() for s in state)
    opt.zero_grad()
    logits, state = model(x, state)
    loss = nn.functional.cross_entropy(logits, y.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(model)
