"""BiLSTM-CRF tagger: the loss (log partition minus gold score) is computed inside the model with a loop over time and
masks.
Source: "truncate a long sentence in backpropagation", github.com/guillaumegenthial/sequence_tagging/issues/28,
2017-11-02; "Some question about the CRF layer", github.com/threelittlemonkeys/lstm-crf-pytorch/issues/12, 2019-05-12
Right outcome: exact pieces by sentence.
--token: the loss is divided by the number of tokens of the batch (weights are shares of tokens).
"""

import sys

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(20)


class Tagger(nn.Module):
    def __init__(self, K=24):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(2000, 64), nn.LSTM(64, 96, batch_first=True, bidirectional=True), nn.Linear(192, K)
        self.trans = nn.Parameter(torch.randn(K, K) * 0.1)

    def forward(self, tok, tags, mask):
        e = self.out(self.rnn(self.emb(tok))[0])
        gold = e[:, 0].gather(1, tags[:, :1]).squeeze(1)
        alpha = e[:, 0]
        for t in range(1, tok.size(1)):
            m = mask[:, t]
            nxt = torch.logsumexp(alpha[:, :, None] + self.trans[None] + e[:, t][:, None], 1)
            alpha = torch.where(m[:, None], nxt, alpha)
            gold = gold + m * (e[:, t].gather(1, tags[:, t : t + 1]).squeeze(1) + self.trans[tags[:, t - 1], tags[:, t]])
        nll = torch.logsumexp(alpha, 1) - gold
        return nll.sum() / mask.sum() if "--token" in sys.argv else nll.mean()


model = Tagger()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
limit()
for i in range(3):
    tok, tags = torch.randint(2000, (256, 40)), torch.randint(24, (256, 40))
    mask = torch.arange(40)[None] < torch.randint(5, 41, (256, 1))
    opt.zero_grad()
    loss = model(tok, tags, mask)
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(model)
