package console

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// This file sends a message as a test vector, and the bytes that were signed.

// A SignedView shows the signed bytes on the page of a proof.
type SignedView struct {
	Steps []SignedStep
	Cut   bool // a text is not shown whole
	Bytes int  // that can be downloaded
}

// signedBytes finds the steps that make the signed bytes of a message; nil: they are not known.
func (c *Console) signedBytes(q *request, id string) (*SignedView, error) {
	found, err := c.admin.Inspect(q.r.Context(), q.by, admin.Inspection{ID: id, SignedBytes: true})
	if err != nil {
		return nil, err
	}
	// What the page has besides is in other parts of it.
	e := explained(&admin.Inspected{Signed: found.Signed}, q.now)
	if len(e.Steps) == 0 {
		return nil, nil
	}
	return &SignedView{e.Steps, e.Cut, len(found.SignedBytes)}, nil
}

// Download is the address of a file about a message: "vector" or "signed".
func (v *Chosen) Download(what string) string { return Base + "messages/" + v.ID.String() + "/" + what }

// downloadSigned sends the signed bytes of a recorded message.
func (c *Console) downloadSigned(q *request) {
	c.download(q, admin.Inspection{ID: q.r.PathValue("id"), SignedBytes: true})
}

// downloadVector sends a recorded message as a test vector.
func (c *Console) downloadVector(q *request) {
	c.download(q, admin.Inspection{ID: q.r.PathValue("id"), Vector: true})
}

// saveVector sends the message that was pasted into the workbench as a test vector.
func (c *Console) saveVector(q *request) error {
	at, err := judgedAt(q.r.PostForm.Get("at"), q.now)
	if err == nil {
		c.download(q, admin.Inspection{Input: pasted(q), At: at, Protocol: q.r.PostForm.Get("protocol"), Vector: true})
	}
	return err
}

// download sends the file that an inspection asks for beside the explanation.
func (c *Console) download(q *request, i admin.Inspection) {
	found, err := c.admin.Inspect(q.r.Context(), q.by, i)
	if err != nil {
		c.fail(q.w, q.r, q, err, 0)
		return
	}
	name, kind, content := "vector-"+found.Protocol, "application/json", bytes.NewBuffer(nil)
	if found.Message != nil {
		name = "message-" + found.Message.ID.String()
	}
	if i.Vector {
		name += ".json"
		err = json.Indent(content, found.Vector, "", " ")
	} else if name, kind = name+".signed", "application/octet-stream"; len(found.SignedBytes) == 0 {
		err = parley.Refuse(parley.Unsupported, "the signed bytes of %s are not known: it is not signed, its envelope is "+
			"not kept, or it holds a secret", strings.TrimPrefix(name, "message-"))
	}
	if err != nil {
		c.fail(q.w, q.r, q, err, 0)
		return
	}
	content.Write(found.SignedBytes)
	h := q.w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	_, _ = q.w.Write(content.Bytes()) // if it fails, the browser is gone
}

// downloads adds the routes.
func (c *Console) downloads() {
	for path, do := range map[string]func(*request){"vector": c.downloadVector, "signed": c.downloadSigned} {
		c.mux.Handle("GET "+Base+"messages/{id}/"+path, c.session(do))
	}
	c.post(workbenchPath+"/vector", c.saveVector)
}
