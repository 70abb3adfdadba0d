package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-hub/parley/admin"
)

// TestSecretsInClearAreReplaced: a token file of an earlier version stays valid, and its
// secrets are gone after the start.
func TestSecretsInClearAreReplaced(t *testing.T) {
	const secret = "a-secret-of-an-earlier-version"
	data := t.TempDir()
	path := filepath.Join(data, admin.TokenFile)
	if err := os.WriteFile(path, []byte(`{"name":"old","role":"read","token":"`+secret+`"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log logBuffer
	n := running(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Durability: "disk", Data: data})
	if _, err := (&admin.Client{Base: n.Addresses().Admin, Token: secret}).Info(t.Context()); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || strings.Contains(string(b), secret) {
		t.Errorf("the secret is still there: %s %v", b, err)
	}
	if !strings.Contains(log.String(), "replaced the secrets") || strings.Contains(log.String(), secret) {
		t.Error(log.String())
	}
}

// TestAnnouncement: hub.json gives access to the hub's user while the hub runs, and never
// to other users.
func TestAnnouncement(t *testing.T) {
	data := t.TempDir()
	path := filepath.Join(data, AddressFile)
	// An old file must not pass on its mode.
	if err := os.WriteFile(path, []byte(`{"admin":"http://127.0.0.1:1"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	n := running(t, Config{Durability: "disk", Data: data})
	i, err := os.Stat(path)
	if err != nil || i.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", i, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var at struct{ Admin, Token string }
	if err := json.Unmarshal(b, &at); err != nil || at.Token == "" {
		t.Fatalf("no token in %s: %v", b, err)
	}
	client := &admin.Client{Base: at.Admin, Token: at.Token}
	if _, err := client.Send(t.Context(), admin.Send{From: "anyone", To: "echo", JSON: []byte(`{}`)}); err != nil {
		t.Error(err)
	}
	if _, err := client.AddAgent(t.Context(), admin.NewAgent{Name: "new", Inbox: true}); err != nil {
		t.Error(err)
	}
	list, err := client.Audit(t.Context(), admin.AuditFilter{Limit: 1})
	if err != nil || len(list) != 1 || list[0].Actor != "local" {
		t.Errorf("%+v %v", list, err)
	}
	if b, err := json.Marshal(n.Addresses()); err != nil || bytes.Contains(b, []byte(at.Token)) {
		t.Errorf("the token is among the addresses: %s %v", b, err)
	}
	files, err := backupFiles(n.c.Data)
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if f.Name == AddressFile || bytes.Contains(f.Data, []byte(at.Token)) {
			t.Errorf("%s is in backups", f.Name)
		}
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAnnouncement(data); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
		t.Errorf("a file that others can read: %v", err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := ReadAnnouncement(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a hub that has ended is announced: %v", err)
	}
	again := running(t, Config{Durability: "disk", Data: data})
	client.Base = again.Addresses().Admin
	if _, err := client.Info(t.Context()); !errors.Is(err, admin.ErrToken) {
		t.Errorf("the token of the start before: %v", err)
	}
}

// TestFirstTokenInMemory: a hub in memory shows its first token too, and announces
// nothing.
func TestFirstTokenInMemory(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	var first []string
	n := running(t, Config{Data: data, FirstToken: func(secret string) { first = append(first, secret) }})
	if len(first) != 1 {
		t.Fatalf("%d first tokens", len(first))
	}
	if _, err := (&admin.Client{Base: n.Addresses().Admin, Token: first[0]}).Info(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something of a hub in memory is on the disk: %v", err)
	}
}
