"""PPO: rollout without gradients, then epochs of shuffled minibatches; advantages normalised per minibatch, clipped
ratio, value loss, entropy.
Source: "I do not understand the GPU and memory usage of SB3", github.com/DLR-RM/stable-baselines3/issues/1630,
2023-07-27; "Why using replay_buffer.gather_all in PPO?", github.com/tensorflow/agents/issues/79, 2019-04-15
Right outcome: exact pieces (the advantages are constants).
--inside: the advantages are normalised with statistics of the minibatch inside the loss after the ratio (not
separable) -> refused.
"""

import sys

import torch
import torch.nn as nn
from room import finish, limit
from torch.distributions import Categorical

torch.manual_seed(14)


class AC(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
        self.pi, self.v = nn.Linear(512, 6), nn.Linear(512, 1)

    def forward(self, o):
        h = self.body(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


model = AC()
opt = torch.optim.Adam(model.parameters(), lr=3e-4, eps=1e-5)
N, n = 60000, 0
limit()
for _ in range(2):
    obs = torch.randn(N, 24)
    with torch.no_grad():
        act, old = [], []
        for o in obs.split(8000):
            d, _ = model(o)
            a = d.sample()
            act.append(a)
            old.append(d.log_prob(a))
        act, old = torch.cat(act), torch.cat(old)
    adv = obs[:, 0] * (act == 2) - obs[:, 1] * (act == 3) + 0.1 * torch.randn(N)
    ret = obs[:, 2] * 2
    for idx in torch.randperm(N).split(25000):
        d, v = model(obs[idx])
        ratio = (d.log_prob(act[idx]) - old[idx]).exp()
        A = adv[idx]
        A = (A - A.mean()) / (A.std() + 1e-8)
        if "--inside" in sys.argv:
            ratio = ratio / ratio.mean()
        pg = torch.max(-A * ratio, -A * ratio.clamp(0.8, 1.2)).mean()
        loss = pg + 0.5 * ((v - ret[idx]) ** 2).mean() - 0.01 * d.entropy().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        print(n, f"{loss.item():.9g}", flush=True)
        n += 1
finish(model)
