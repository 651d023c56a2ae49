package rewrite

import (
	"strings"
	"testing"
	"testing/fstest"

	"headroom/wrap/command"
)

// TestDoubts checks that a script raises a doubt if its text shows that smaller
// micro-batches would change what it trains, and that ordinary scripts raise none. Whether or not
// there is a sign of it, that samples are not compared has to be proven for every script.
func TestDoubts(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  string
		files map[string]string
		want  string // parts of the conditions, separated by |; "" if there must be no doubt
	}{
		{"a language model", "train.py", map[string]string{"train.py": "import torch\nopt = torch.optim.AdamW(m.parameters(), lr=args.lr)\nloss = F.cross_entropy(a, b)\n"}, ""},
		{"one optimizer or another", "train.py", map[string]string{"train.py": "if args.opt == 'sgd':\n    opt = optim.SGD(p)\nelse:\n    opt = optim.Adam(p)\n"}, ""},
		{"a comment", "train.py", map[string]string{"train.py": "# no BatchNorm2d here\nx = nn.LayerNorm(8) # not InfoNCE\n"}, ""},
		{"batch_size beside lr", "train.py", map[string]string{"train.py": "print(args.lr, args.batch_size)\ntrain(lr=args.lr, batch_size=args.batch_size)\nsteps = n / batch_size\n"}, ""},
		{"a generator and a discriminator", "gan.py", map[string]string{"gan.py": "opt_g = torch.optim.Adam(g.parameters())\nopt_d = torch.optim.Adam(d.parameters())\n"}, "opt_g and opt_d in gan.py"},
		{"in-batch negatives", "train.py", map[string]string{"train.py": "\nloss = losses.MultipleNegativesRankingLoss(model)\n"}, "compare the samples|MultipleNegativesRankingLoss in train.py, line 2"},
		{"a contrastive loss", "train.py", map[string]string{"train.py": "loss = contrastive_loss(a, b)"}, "compare the samples"},
		{"CLIP", "train.py", map[string]string{"train.py": "loss = ClipLoss()(image, text)"}, "compare the samples"},
		{"SigLIP", "train.py", map[string]string{"train.py": "loss = SigLipLoss()(image, text)"}, "compare the samples"},
		{"a module beside the script", "src/train.py", map[string]string{"src/train.py": "from model import Net\n", "src/model.py": "import torch.nn as nn\nself.bn = nn.BatchNorm2d(64)\n"}, "BatchNorm2d in src/model.py, line 2"},
		{"a module that is imported after many that are not the script's", "train.py", map[string]string{"model.py": "nn.BatchNorm1d(8)",
			"train.py": "import " + strings.Join(strings.Fields("a b c d e f g h i j k l m n o p q r s t u v w x y z aa bb cc dd ee ff gg hh ii jj"), ", ") + "\nimport model\n"}, "BatchNorm1d in model.py"},
		{"a model by name", "train.py --model resnet50 --bs 3", map[string]string{"train.py": ""}, "resnet50 in the arguments"},
		{"a transformer by name", "train.py --model vit_base_patch16_224", map[string]string{"train.py": ""}, ""},
		{"the linear scaling rule", "train.py", map[string]string{"train.py": "args.lr = args.lr * args.batch_size / 256\n"}, "learning rate does not depend"},
		{"the same, the other way round", "train.py", map[string]string{"train.py": "optimizer = SGD(p, args.batch_size / 256 * args.lr)\n"}, "learning rate does not depend"},
	} {
		files := fstest.MapFS{}
		for name, text := range c.files {
			files["home/me/"+name] = &fstest.MapFile{Data: []byte(text)}
		}
		m, err := Recognise(command.Line{Args: strings.Fields("python " + c.args + " --batch-size 8 --accum 1"), Dir: "/home/me"}, nil,
			Given{Files: files, Knobs: []string{"micro=--batch-size", "accumulation=--accum"}})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(doubtful(m), "\n")
		if c.want == "" && got != "" {
			t.Errorf("%s: doubted for %q", c.name, got)
		}
		for part := range strings.SplitSeq(c.want, "|") {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q does not say %q", c.name, got, part)
			}
		}
		asked, err := Asks(m)
		if err != nil {
			t.Fatal(err)
		}
		next, err := To(m, asked.Plan.WithMicro(1), Resume{})
		if all := strings.Join(next.Prove, "\n"); err != nil || strings.Count(all, compared) != 1 {
			t.Errorf("%s: %v, to prove, once, that %s: %q", c.name, err, compared, all)
		}
	}
}
