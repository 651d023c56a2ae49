package notify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ given, address, form, name string }{
		{"https://ntfy.sh/my-night", "https://ntfy.sh/my-night", "ntfy", "ntfy.sh (ntfy)"},
		{"https://ntfy.example.org/my-night", "https://ntfy.example.org/my-night", "ntfy", "ntfy.example.org (ntfy)"},
		{"ntfy://my-night", "https://ntfy.sh/my-night", "ntfy", "ntfy.sh (ntfy)"},
		{"ntfy://push.example/my-night", "https://push.example/my-night", "ntfy", "push.example (ntfy)"},
		{"ntfy+http://push:8080/my-night", "http://push:8080/my-night", "ntfy", "push:8080 (ntfy)"},
		{"ntfy://me:sesame99@push.example/n", "https://me:sesame99@push.example/n", "ntfy", "push.example (ntfy)"},
		{"https://hooks.slack.com/services/T0/B0/KEY", "https://hooks.slack.com/services/T0/B0/KEY", "slack", "hooks.slack.com (slack)"},
		{"slack://T0AB/B0CD/KEYkey12", "https://hooks.slack.com/services/T0AB/B0CD/KEYkey12", "slack", "hooks.slack.com (slack)"},
		{"slack://chat.example/hooks/KEY", "https://chat.example/hooks/KEY", "slack", "chat.example (slack)"},
		{"SLACK+HTTP://chat:8065/hooks/KEY", "http://chat:8065/hooks/KEY", "slack", "chat:8065 (slack)"},
		{"https://discord.com/api/webhooks/1/TOKEN", "https://discord.com/api/webhooks/1/TOKEN", "discord", "discord.com (discord)"},
		{"https://ptb.discord.com/api/webhooks/1/TOKEN", "https://ptb.discord.com/api/webhooks/1/TOKEN", "discord", "ptb.discord.com (discord)"},
		{"discord://12/to-KEN_1", "https://discord.com/api/webhooks/12/to-KEN_1", "discord", "discord.com (discord)"},
		{"https://example.org/hook?key=K", "https://example.org/hook?key=K", "json", "example.org (json)"},
		{"json://ntfy.sh/x", "https://ntfy.sh/x", "json", "ntfy.sh (json)"},
		{"http://[::1]:9/x", "http://[::1]:9/x", "json", "[::1]:9 (json)"},
		{"notify-send headroom", "", "", "the command notify-send"},
		{"/opt/bin/tell --token=K x", "", "", "the command tell"},
		{"curl -d @- https://example.org/KEY", "", "", "the command curl"},
		{"json: a command of that name", "", "", "the command json:"},
	} {
		r, err := Parse(c.given)
		if err != nil {
			t.Errorf("%s: %v", c.given, err)
			continue
		}
		address := ""
		if r.address != nil {
			address = r.address.String()
		}
		if address != c.address || string(r.form) != c.form || r.String() != c.name {
			t.Errorf("%s: %s, %s, %s", c.given, address, r.form, r)
		}
		if r.address == nil && r.command != c.given {
			t.Errorf("%s: runs %s", c.given, r.command)
		}
	}
	for _, given := range []string{"", "  ", "tgram://1:KEY/2", "https://", "https:///KEY", "http://host:port/KEY", "ntfy://push.example/", "https://ntfy.sh", "slack+ftp://x/KEY", "ntfy:/x/KEY", "https:example.org/KEY", "SLACK:/KEY"} {
		switch r, err := Parse(given); {
		case err == nil:
			t.Errorf("%q is %v", given, r)
		case strings.Contains(err.Error(), "KEY"):
			t.Errorf("%q: the error has the secret: %v", given, err)
		}
	}
}

func TestExpanded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "who")
	if err := os.WriteFile(file, []byte("# at night\nntfy://a\n\n  slack://chat.example/hooks/KEY  \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Expanded([]string{"tell", "@" + file, "tell @x"})
	if want := "tell|ntfy://a|slack://chat.example/hooks/KEY|tell @x"; err != nil || strings.Join(got, "|") != want {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Expanded([]string{"@" + file + "-not-there"}); !os.IsNotExist(err) {
		t.Error(err)
	}
}
