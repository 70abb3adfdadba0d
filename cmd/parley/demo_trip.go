package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/uagents"
)

// tripScenes lets six agents of six protocols plan a trip: each asks the next one, and
// gets the answer, in its own protocol.
func (d *demo) tripScenes(ctx context.Context, traveller *samvad.Client) {
	if d.guide == nil || d.baker == nil || d.mason == nil || d.robot == nil || !d.inn {
		d.scene("six agents plan a trip", func() ([]string, error) { return nil, errors.New("not all of them came") })
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	d.scene("the operator lets all six appear in every protocol", func() ([]string, error) {
		var lines []string
		for _, x := range [][2]string{{"uagents", d.guide.Identity.Address()}, {"agh", "demo/mason"},
			{"asp", d.baker.Identity.ID()}, {"", "robot"}, {"", "museum"}, {"", "inn"}} {
			agent, err := d.agent(x[0], x[1])
			if err != nil {
				return lines, err
			}
			if err := d.node.Hub().Directory().Expose(ctx, agent.Name, []string{"all"}); err != nil {
				return lines, err
			}
			lines = append(lines, "exposed  "+agent.Name)
		}
		return lines, nil
	})
	d.scene("the trip, SAMVAD to A2E: traveller asks robot to pack", func() ([]string, error) {
		packed := make(chan error, 1)
		go func() { packed <- robot(ctx, d.robot) }()
		r, err := traveller.Ask(ctx, samvad.Call{URL: d.node.Addresses().HTTP + "/agents/robot", Skill: "pack",
			Payload: []byte(`{"text":"pack for Bern"}`)})
		if err != nil {
			return nil, err
		}
		if err := <-packed; err != nil {
			return nil, err
		}
		return []string{string(r.Result)}, want(strings.Contains(string(r.Result), "87 percent"),
			"the answer is not robot's")
	})
	d.scene("the trip, A2E to uAgents: robot calls the guide as a tool", func() ([]string, error) {
		guide, err := d.agent("uagents", d.guide.Identity.Address())
		if err != nil {
			return nil, err
		}
		r, err := d.robot.CallTool(ctx, "parley_ask", map[string]string{"agent": guide.Name, "content": "Where to?"},
			nil)
		if err != nil {
			return nil, err
		}
		b, err := json.Marshal(r.Data)
		if err != nil {
			return nil, err
		}
		return []string{string(b)}, want(strings.Contains(string(b), "You said: Where to?"),
			"the answer is not the guide's")
	})
	d.scene("the trip, uAgents to AGH: the guide asks mason for a shelter", func() ([]string, error) {
		mason, err := d.agent("agh", "demo/mason")
		if err != nil {
			return nil, err
		}
		model, err := uagents.ParseModel([]byte(messageModel))
		if err != nil {
			return nil, err
		}
		r, err := d.guide.Ask(ctx, d.node.UAgents().Address(mason),
			model.MessageText([]byte(`{"message":"a shelter, please"}`)))
		if err != nil {
			return nil, err
		}
		return []string{fmt.Sprintf("%s  %s", r.Assurance, r.Payload)},
			want(strings.Contains(string(r.Payload), "built"), "the answer is not mason's")
	})
	d.scene("the trip, AGH to ASP: mason asks the baker for bread", func() ([]string, error) {
		baker, err := d.agent("asp", d.baker.Identity.ID())
		if err != nil {
			return nil, err
		}
		peer := strings.ReplaceAll(baker.Name, "/", "__")
		if err := soon(ctx, func() error {
			for _, err := range d.mason.Whois(ctx, peer, "", true) {
				return err
			}
			return errors.New("the baker is no peer yet")
		}); err != nil {
			return nil, err
		}
		lines, err := masonAsks(ctx, d.mason, peer, &agh.Say{Text: "bread for two", Intent: "request"})
		if err != nil {
			return lines, err
		}
		return lines, want(strings.Contains(strings.Join(lines, " "), "baked"), "the answer is not the baker's")
	})
	d.scene("the trip, ASP to A2A: the baker asks the inn for beds", func() ([]string, error) {
		var m *asp.Message
		if err := soon(ctx, func() (err error) {
			_, m, err = d.bakerAsks(ctx, d.baker, "inn", "two beds", "book")
			return err
		}); err != nil {
			return nil, err
		}
		return []string{string(m.Performative) + "  " + string(m.Body)},
			want(strings.Contains(string(m.Body), "a room with a view"), "the answer is not the inn's")
	})
	d.scene("the trip, ASP to SAMVAD: the baker asks the museum what is on", func() ([]string, error) {
		var m *asp.Message
		if err := soon(ctx, func() (err error) {
			_, m, err = d.bakerAsks(ctx, d.baker, "museum", "an evening out", "exhibitions")
			return err
		}); err != nil {
			return nil, err
		}
		return []string{string(m.Performative) + "  " + string(m.Body)},
			want(strings.Contains(string(m.Body), "Klee"), "the answer is not the museum's")
	})
}

// soon repeats f until it succeeds or ctx ends: stand-ins are made in the background.
func soon(ctx context.Context, f func() error) error {
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return err
		}
	}
}
