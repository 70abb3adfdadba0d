package admin

import (
	"cmp"
	"context"
	"time"

	"github.com/parley-hub/parley"
)

// maxDoctor bounds an examination by [Admin.Doctor].
const maxDoctor = time.Minute

// Doctor checks the ways to an agent step by step. The hub calls the agent, and starts no work there.
func (a *Admin) Doctor(ctx context.Context, by Actor, name string) ([]DoctorStep, error) {
	if err := cmp.Or(by.may(Operate), a.resolveNames(&name)); err != nil {
		return nil, err
	}
	e, err := a.entry(by, name)
	if err != nil {
		return nil, err
	}
	if a.c.Workbench.Doctor == nil {
		return nil, parley.Refuse(parley.Unsupported, "this hub checks no ways to agents")
	}
	leave, err := a.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, maxDoctor)
	defer cancel()
	return a.c.Workbench.Doctor(ctx, by, e.Name), nil
}

func postDoctor(a *Admin, c *call) (any, error) {
	if err := c.body(&struct{}{}, true); err != nil {
		return nil, err
	}
	steps, err := a.Doctor(c.r.Context(), c.by, c.r.PathValue("name"))
	return map[string]any{"steps": steps}, err
}
