package flows

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/journal/index"
)

// planned is the conversation in which the traveller asked for a plan: the beginning of a trace over all protocols.
func (c *console) planned() string {
	c.t.Helper()
	page, err := c.API.Messages(context.Background(), index.Filter{From: "traveller", To: "planner",
		Kind: parley.Request, Limit: 1})
	if err != nil || len(page.Messages) == 0 {
		c.t.Fatal(err, page)
	}
	return page.Messages[0].Conversation.String()
}

// TestFlow08Evidence: the file that the page offers passes the check of its chain; one changed byte does not.
func TestFlow08Evidence(t *testing.T) {
	c := begin(t)
	c.trip()
	dir := t.TempDir()
	v := c.entered(browser.Look{Downloads: dir}, admin.Operate)
	id := c.planned()
	v.to("/console/conversations/" + id)
	v.do(browser.Press("e"), browser.Has("#evidence:target"))
	v.shot("evidence")
	if err := v.Download(browser.Click(`#evidence:target a.go[download]`)); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(b); err != nil {
		t.Errorf("the downloaded file: %v", err)
	}
	b[len(b)/2] ^= 1
	if err := verify(b); err == nil {
		t.Error("a changed file passes")
	}
}

// verify checks the chain of an exported conversation, as parley conversation verify does.
func verify(file []byte) error {
	report, err := admin.VerifyExport(bytes.NewReader(file), func(*admin.ExportHeader, int, *admin.ExportRecord) {})
	if err == nil && (!report.Signed || len(report.Problems) > 0) {
		err = fmt.Errorf("signed: %t, problems %q", report.Signed, report.Problems)
	}
	return err
}
