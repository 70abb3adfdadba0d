package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// UAgentsAddress checks an endpoint: its server must serve the agent. HEAD asks it without sending a message.
func (d *Doctor) UAgentsAddress(ctx context.Context, at WayPoint) {
	setting := at.Setting + ", or the endpoint with which the agent registers"
	u := d.Reach(ctx, setting, at.Address, d.Guard)
	if u == nil {
		return
	}
	const check = "endpoint"
	sent := d.Now()
	resp, err := d.Get(ctx, http.MethodHead, u.String(), http.Header{"X-Uagents-Address": {at.ID}}, d.Guard)
	if err != nil {
		d.Failed(check, setting, err)
		return
	}
	defer resp.Body.Close()
	d.CompareDate("uagents", d.Skew("uagents"), resp, sent)
	switch status := resp.Header.Get("X-Uagents-Status"); {
	case status == "ready":
		d.OK(check, "it serves the agent, which is ready")
	case status == "not-ready":
		d.Failed(check, setting, fmt.Errorf("its server does not serve %s, or is stopping", at.ID))
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode >= 500:
		d.Failed(check, setting+" (its path is mostly /submit)", errors.New("HEAD answered "+resp.Status))
	default:
		d.Skip(check, "its server does not say whether it serves the agent (%s)", resp.Status)
	}
}
