# A configuration of nano.py.
batch_size = 64
n_embd = 4096
eval_interval = 2
