package console

import (
	"strconv"

	"github.com/parley-hub/parley"
)

// This file draws the wires of a row: from the sender through the beads to the recipients.

// beadX is the place of a bead; the wire goes through them from the sender's side.
func (d *svg) beadX(b bead, right bool) float64 {
	if right {
		return d.hub + hubWidth - 76.5 - float64(b)*beadStep
	}
	return d.hub + 76.5 + float64(b)*beadStep
}

// sender draws the proof of the sender on its lane.
func (d *svg) sender(r *SequenceRow, y float64) {
	x, _ := d.from(r)
	class := map[Proof]string{"signed": "sg", "session": "se"}[r.Proof]
	if class == "" {
		class = "un"
	}
	d.put("circle", "class", "under", "cx", px(x), "cy", px(y), "r", "9")
	name := string(r.Proof)
	if name == "" {
		name = "unsigned"
	}
	d.use(name, class, x, y, 15)
	if r.Address != "" {
		d.text("sm halo f-bad", x+14, y-6, "start", r.Address, d.hub-x-18, charSmall)
	}
}

// use places an icon of parts.html.
func (d *svg) use(icon, class string, x, y, size float64) {
	d.put("use", "href", "#i-"+icon, "class", class, "x", px(x-size/2), "y", px(y-size/2), "width", px(size),
		"height", px(size))
}

// path draws a line.
func (d *svg) path(class, p string) { d.put("path", "class", class, "d", p) }

func (d *svg) line(class string, x, y, to float64) {
	d.path(class, "M"+px(x)+" "+px(y)+"H"+px(to))
}

// tip draws the head of an arrow that ends at x.
func (d *svg) tip(class string, x, y float64, right bool, size float64) {
	back, half := -size, size/2
	if !right {
		back = size
	}
	d.path("tip"+class, "M"+px(x)+" "+px(y)+"l"+px(back)+" "+px(-half)+"v"+px(2*half)+"z")
}

// wire draws the way of a message through the hub, and to its recipients.
func (d *svg) wire(r *SequenceRow, list []track, y float64) {
	from, known := d.from(r)
	right := known && from > d.hub
	at := func(b bead) float64 { return d.beadX(b, right) }
	in := d.hub
	if right {
		in += hubWidth
	}
	if r.Refused >= 0 {
		d.refused(r, from, in, y, right)
		return
	}
	done := r.Passed
	for i := range r.Wires {
		done = max(done, min(r.Wires[i].Passed, beadDelivered))
	}
	end := at(max(done-1, 0))
	d.line("wire", from, y, end)
	if r.Folded > 0 {
		d.line("wire thin", from, y-4, in)
		d.line("wire thin", from, y+4, in)
	}
	d.tip("", in, y, !right, 7)
	if done < beadDelivered {
		d.line("wire thin", end, y, at(beadTranslated))
	}
	for b := beadReceived; b < beadDelivered; b++ {
		d.bead(r, b, at(b), y, b < done)
	}
	for i := range r.Wires {
		if w := &r.Wires[i]; w.Untold != "" {
			d.untold(at(beadTranslated), y, right)
			return
		}
	}
	if len(list) == 0 {
		d.line("wire thin", at(beadTranslated), y, at(beadSettled))
		d.bead(r, beadDelivered, at(beadDelivered), y, false)
		d.bead(r, beadSettled, at(beadSettled), y, false)
		return
	}
	x := at(beadDelivered)
	if last := list[len(list)-1].dy; last > 0 {
		d.path("wire thin", "M"+px(x)+" "+px(y)+"V"+px(y+last))
	}
	if list[0].dy > 0 || list[0].ring > 0 {
		class := "wire"
		if done < beadDelivered {
			class = "wire thin"
		}
		d.line(class, at(beadTranslated), y, x)
	}
	for i := range list {
		d.track(r, &list[i], x, y, right)
	}
}

// bead draws one step.
func (d *svg) bead(r *SequenceRow, b bead, x, y float64, done bool) {
	class, radius := "bead", "4"
	if !done {
		class, radius = "bead off", "3"
	}
	d.open("circle", "class", class, "cx", px(x), "cy", px(y), "r", radius)
	d.open("title")
	d.WriteString(stepName(b, r.Proof, done))
	d.WriteString("</title>")
	d.shut("circle")
}

// stepName is the word of a step. Only a signature is verified.
func stepName(b bead, p Proof, done bool) string {
	name := beadNames[b]
	if b == beadVerified && p == "session" {
		name = "checked by its session"
	} else if b == beadVerified && p == "unsigned" {
		name = "checked, without a proof"
	}
	if !done {
		return "not recorded: " + beadNames[b]
	}
	return name
}

// refused draws the wire of a refused message: an octagon at the step, the rest hollow.
func (d *svg) refused(r *SequenceRow, from, in, y float64, right bool) {
	x := d.beadX(r.Refused, right)
	d.line("s-bad", from, y, x)
	d.line("wire thin", x, y, d.beadX(beadSettled, right))
	d.tip(" f-bad", in, y, !right, 7)
	for b := beadReceived; b < beads; b++ {
		switch {
		case b == r.Refused:
			d.use("refused", "refused", x, y, 14)
		default:
			d.bead(r, b, d.beadX(b, right), y, b < r.Refused)
		}
	}
}

// untold ends the wire of an event that no recipient gets.
func (d *svg) untold(x, y float64, right bool) {
	to := x + 60
	if right {
		to = x - 60
	}
	d.line("s-loss dots", x, y, to)
	d.use("loss", "loss", to, y, 13)
}

// track draws one line to a recipient.
func (d *svg) track(r *SequenceRow, t *track, x, top float64, senderRight bool) {
	y := top + t.dy
	right := t.to > d.hub
	out, sign := d.hub, -1.0
	if right {
		out, sign = d.hub+hubWidth, 1
	}
	switch {
	case t.failed:
		d.line("s-bad", x, y, t.to-sign*18)
		d.use("x", "bad", t.to-sign*15, y, 13)
	case t.next, t.open:
		d.line("s-wait", x, y, t.to-sign*20)
		d.use("clock", "waiting", t.to-sign*13, y, 14)
	default:
		d.arrived(r, t, x, y, senderRight)
	}
	if t.ring > 0 {
		d.ring(t, x, y)
	}
	if t.pause != "" {
		anchor, at := "end", x-12
		if senderRight {
			anchor, at = "start", x+12
		}
		d.text("ms", at, y-9, anchor, t.pause, 215, charSmall)
	}
	d.labels(t, out, sign, y, r)
}

// arrived draws the wire to a recipient that has the message, or may have it.
func (d *svg) arrived(r *SequenceRow, t *track, x, y float64, senderRight bool) {
	right, sign := t.to > d.hub, -1.0
	if right {
		sign = 1
	}
	w := t.wire
	begin := x
	if t.dy == 0 && t.ring == 0 {
		begin = d.beadX(beadTranslated, senderRight)
	}
	has := w.delivered() || w.State == 0 && w.Settled
	class := "wire"
	if !has {
		class = "wire thin"
	}
	if w.State > parley.Answered { // dead, dropped, expired or abandoned without an attempt that tells why
		d.line("s-bad", begin, y, t.to-sign*18)
		d.use("x", "bad", t.to-sign*15, y, 13)
	} else {
		if w.Own {
			class += " own"
		}
		d.line(class, begin, y, t.to-sign*6)
		if has {
			d.tip("", t.to-sign*4, y, right, 8)
		}
	}
	if t.ring == 0 {
		d.bead(r, beadDelivered, x, y, w.delivered())
	}
	d.bead(r, beadSettled, x+sign*beadStep, y, w.Settled)
}

// ring draws the number of an attempt.
func (d *svg) ring(t *track, x, y float64) {
	class, text := "num1", "num1t"
	switch {
	case t.failed:
		class, text = "num1 s-bad", "num1t f-bad"
	case t.next, t.open:
		class, text = "num1 pend", "num1t f-wait"
	}
	d.put("circle", "class", "num1", "cx", px(x), "cy", px(y), "r", "7.5")
	d.put("circle", "class", class, "cx", px(x), "cy", px(y), "r", "7.5")
	d.text(text, x, y+3.4, "middle", strconv.Itoa(t.ring), 30, charSmall)
}

// labels writes the result of an attempt and the losses at the hub's edge.
func (d *svg) labels(t *track, out, sign, y float64, r *SequenceRow) {
	anchor, room := "start", d.width-out-16
	if sign < 0 {
		anchor, room = "end", out-gutter-16
	}
	x := out + sign*10
	if t.last && t.wire.Lost > 0 && !t.failed && !t.next {
		d.use("loss", "loss", out+sign*12, y, 12)
		d.text("sm halo f-loss", out+sign*8, y+15, anchor, strconv.Itoa(t.wire.Lost)+" lost", room, charSmall)
		x += sign * 12
		room -= 12
	}
	class := "sm halo"
	switch {
	case t.failed:
		class += " f-bad"
	case t.next, t.open:
		class += " f-wait"
	}
	d.text(class, x, y-5, anchor, t.label, room, charSmall)
}
