package main

import (
	"strconv"
	"strings"
	"time"
)

// This file reads the times and durations of flags.

// moment reads a time, or a duration back from now; "" is the zero time.
func moment(flag, s string) (time.Time, error) { return momentFrom(flag, s, -1) }

// later is moment with a duration from now on.
func later(flag, s string) (time.Time, error) { return momentFrom(flag, s, 1) }

func momentFrom(flag, s string, sign time.Duration) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, ok := duration(s); ok {
		return time.Now().Add(sign * d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usage("%s %q: want a time such as 2026-11-20T15:04:05Z, a day such as 2026-11-20 (UTC), or a "+
		"duration such as 2h or 30d", flag, s)
}

// duration reads a duration as Go writes it, or a number of days: 30d.
func duration(s string) (d time.Duration, ok bool) {
	if days, cut := strings.CutSuffix(s, "d"); cut {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d >= 0
}
