package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestConfigurationPageIsCurrent: docs/configuration.md is the program's output.
func TestConfigurationPageIsCurrent(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := run([]string{"config", "describe", "--markdown"}, nil, &out, &errs); code != exitOK {
		t.Fatalf("%d: %s", code, &errs)
	}
	have, err := os.ReadFile(filepath.Join("..", "..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, out.Bytes()) {
		t.Error("docs/configuration.md is not current: " +
			"go run ./cmd/parley config describe --markdown > docs/configuration.md")
	}
}
