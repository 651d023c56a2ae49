package rewrite

import (
	"strings"
	"testing"
	"testing/fstest"

	"headroom/wrap/profile"
	"headroom/wrap/wraptest"
)

// TestMistyped checks that a flag in --knob that the command does not know is compared with
// those that it has, and that no flag is doubted which the command may know.
func TestMistyped(t *testing.T) {
	const declares = "p.add_argument('--batch_size', type=int)\np.add_argument('-a', '--accum', type=int, default=1)\np.add_argument('--resume_from')\n"
	for _, c := range []struct{ name, script, command, knobs, want string }{
		{"missing _", declares, "python t.py --batch_size 8", "micro=--batchsize", "micro: --batchsize: not an option of the command, which has --batch_size; did you mean --knob micro=--batch_size?"},
		{"- for _, which only the script tells", declares, "python t.py", "micro=--batch-size", "micro: --batch-size: not an option of the command, which has --batch_size; did you mean --knob micro=--batch_size?"},
		{"a letter is missing", declares, "python t.py --batch_size 8", "micro=--batch_size accumulation=--acum", "accumulation: --acum: not an option of the command, which has --accum; did you mean --knob accumulation=--accum?"},
		{"needed only to resume", declares, "python t.py --batch_size 8", "micro=--batch_size resume=--resume-from", "resume: --resume-from: not an option of the command, which has --resume_from; did you mean --knob resume=--resume_from?"},
		{"counted over all ranks", declares, "python t.py --batch_size 8", "micro=--batchsize@total", "micro: --batchsize: not an option of the command, which has --batch_size; did you mean --knob micro=--batch_size?"},
		{"an override", "", "python t.py data.batch_size=8", "micro=data.batchsize", "micro: data.batchsize: not an option of the command, which has data.batch_size; did you mean --knob micro=data.batch_size?"},
		{"without a script", "", "python t.py --batch_size=8", "micro=--batchsize", "micro: --batchsize: not an option of the command, which has --batch_size; did you mean --knob micro=--batch_size?"},
		{"not near", declares, "python t.py --batch_size 8", "micro=--bs", "micro: --bs: not given, and its default is not known; give it"},
		{"short ones are not near", "", "python t.py --lr 8", "micro=--bs", "micro: --bs: not given, and its default is not known; give it"},
		{"declared, and not given", declares, "python t.py --batch_size 8", "micro=--batch_size resume=--resume_from", "8"},
		{"another knob's", declares, "python t.py --batch_size 8", "micro=--batch_size eval=--batch_sizes", "8"},
		{"from a library that makes options of parameters", "def main(batch_size, resume_form=None, resume_from=None): ...\n", "python t.py --batch-size 8 --resume-form x", "micro=--batch-size resume=--resume-from", "8"},
		{"declared elsewhere", "from options import parser\n", "python t.py --batch_size 8", "micro=--batch_size resume=--resume", "8"},
		{"a variable", declares, "BATCH_SIZE=8 python t.py", "micro=$BATCHSIZE", "micro: BATCHSIZE: not given, and its default is not known; give it"},
	} {
		files := fstest.MapFS{}
		if c.script != "" {
			files["t.py"] = &fstest.MapFile{Data: []byte(c.script)}
		}
		command := wraptest.Typed(c.command)
		command.Dir = "/"
		m, err := Recognise(command, profile.Builtin(), Given{Knobs: strings.Fields(c.knobs), Files: files})
		if err != nil {
			t.Fatal(err)
		}
		asked, err := Asks(m)
		got := ""
		if err != nil {
			got = err.Error()
		} else if asked.Plan.Micro == 8 {
			got = "8"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
