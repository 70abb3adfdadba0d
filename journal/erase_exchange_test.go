package journal

import (
	"bytes"
	"testing"

	"github.com/parley-hub/parley"
)

// TestEraseExchange: nothing of what an attempt sent and got is left in the files, whether the step that ended it was
// recorded alone or with the reply.
func TestEraseExchange(t *testing.T) {
	dir := t.TempDir()
	j := open(t, setup{Dir: dir, Node: "n"})
	ctx := t.Context()
	exchange := func(size int) *parley.Exchange {
		return &parley.Exchange{Protocol: "asp", Address: "192.0.2.77:443", Status: "503 Service Unavailable", Size: size,
			Digest: bytes.Repeat([]byte{7}, 32), Sent: []byte("POST / " + marzipan), Answer: []byte(marzipan)}
	}
	m := request(t, "alice", "bob")
	if _, err := j.Append(ctx, Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob", Attempt: 1}}}); err != nil {
		t.Fatal(err)
	}
	waiting, err := j.Append(ctx, Entry{Steps: []Step{{Message: m.ID, To: "bob", State: parley.Waiting, Attempt: 1,
		Exchange: exchange(1871)}}})
	if err != nil {
		t.Fatal(err)
	}
	reply := request(t, "bob", "alice")
	reply.Kind, reply.InReplyTo, reply.Parts = parley.Response, m.ID, nil
	answered, err := j.Append(ctx, Entry{Scope: "s", Message: reply, Steps: []Step{{Message: m.ID, To: "bob",
		State: parley.Answered, Exchange: exchange(3)}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(holds(t, dir, marzipan)) == 0 {
		t.Fatal("the files do not have the exchange")
	}
	erase := func(number uint64, left Remains) (long, short *parley.Exchange) {
		t.Helper()
		if n, err := j.Erase(ctx, number, left, []Position{waiting, answered}); err != nil || n != 2 {
			t.Fatal(n, err)
		}
		var out []*parley.Exchange
		for _, at := range []Position{waiting, answered} {
			r, err := j.Read(ctx, at)
			if err != nil {
				t.Fatal(err)
			}
			x := r.Steps[0].Exchange
			if x == nil || x.Sent != nil || x.Answer != nil || x.Protocol != "asp" || x.Status == "" || HasContent(r, left) {
				t.Errorf("%s: %+v", at, x)
			}
			out = append(out, x)
		}
		return out[0], out[1]
	}
	long, short := erase(1, Headers)
	if long.Address == "" || len(long.Digest) != 32 || long.Size != 1871 || short.Digest != nil || short.Size != 3 {
		t.Errorf("%+v %+v", long, short)
	}
	if long, _ = erase(2, Digests); long.Address != "" || len(long.Digest) != 32 {
		t.Errorf("%+v", long)
	}
	if files := holds(t, dir, marzipan); files != nil {
		t.Errorf("%v have what was erased", files)
	}
	if files := holds(t, dir, "192.0.2.77"); files != nil {
		t.Errorf("%v have the address", files)
	}
}
