// Command pictures makes the pictures of the console in docs/images, from a real hub with agents of all protocols:
//
//	go run ./internal/browser/pictures
//
// The hub's clock begins at the same time in each run; ids and durations differ.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/internal/browser/stage"
	"github.com/parley-hub/parley/journal/index"
)

func main() {
	to := flag.String("to", "docs/images", "directory of the pictures")
	flag.Parse()
	if err := run(context.Background(), *to); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, to string) error {
	dir, err := os.MkdirTemp("", "parley-pictures-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b, err := browser.Start()
	if err != nil {
		return err
	}
	defer b.Close()
	s, err := stage.Open(ctx, stage.Config{Data: dir, Begin: time.Date(2026, 11, 22, 14, 30, 0, 0, time.UTC)})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Trip(ctx); err != nil {
		return err
	}
	if _, err := s.Forge(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	page, err := s.API.Messages(ctx, index.Filter{From: "traveller", To: "planner", Kind: parley.Request, Limit: 1})
	if err != nil || len(page.Messages) == 0 {
		return fmt.Errorf("no plan was asked for: %w", err)
	}
	conversation := "/console/conversations/" + page.Messages[0].Conversation.String() + "?extent=trace"
	for _, dark := range []bool{false, true} {
		pages := map[string]string{"messages": "/console/", "conversation": conversation}
		if err := shoot(ctx, b, s, dark, to, pages); err != nil {
			return err
		}
	}
	return nil
}

// shoot makes the pictures of one theme.
func shoot(ctx context.Context, b *browser.Browser, s *stage.Stage, dark bool, to string,
	pages map[string]string) error {
	link, err := s.Link(ctx, admin.Operate)
	if err != nil {
		return err
	}
	p, err := b.Open(s.Origin(), browser.Look{Dark: dark})
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Do(browser.Go(link), browser.ClickTo("main form button", "/console/")); err != nil {
		return err
	}
	theme := map[bool]string{false: "light", true: "dark"}[dark]
	for name, path := range pages {
		err := p.Do(browser.Go(s.Origin()+path), browser.Has("#rows tr, svg.seq"), chromedp.Blur("main", chromedp.ByQuery))
		if err != nil {
			return err
		}
		shot, err := p.PNG(false)
		if err != nil {
			return err
		}
		small, err := smaller(shot)
		if err != nil {
			return err
		}
		file := filepath.Join(to, "console-"+name+"-"+theme+".png")
		if err := os.WriteFile(file, small, 0o644); err != nil {
			return err
		}
		fmt.Printf("%s %d KB\n", file, len(small)/1000)
	}
	return nil
}

// smaller writes a picture with 256 of its colours.
func smaller(shot []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return nil, err
	}
	count := map[color.RGBA]int{}
	all := full.Bounds()
	for y := all.Min.Y; y < all.Max.Y; y++ {
		for x := all.Min.X; x < all.Max.X; x++ {
			count[color.RGBAModel.Convert(full.At(x, y)).(color.RGBA)]++
		}
	}
	few := image.NewPaletted(all, paletteOf(count))
	draw.Draw(few, all, full, all.Min, draw.Src)
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, few)
	return out.Bytes(), err
}

// paletteOf chooses 256 colours: first those that no other resembles, though a sign alone has them, then the frequent.
func paletteOf(count map[color.RGBA]int) (p color.Palette) {
	byCount := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] })
	for _, apart := range []int{48, 0} {
		for _, c := range byCount {
			like := func(o color.Color) bool { return distance(c, o.(color.RGBA)) <= apart }
			if len(p) < 256 && !slices.ContainsFunc(p, like) {
				p = append(p, c)
			}
		}
	}
	return p
}

// distance is how much two colours differ in the channel in which they differ most.
func distance(a, b color.RGBA) int {
	d := func(x, y uint8) int { return max(int(x)-int(y), int(y)-int(x)) }
	return max(d(a.R, b.R), d(a.G, b.G), d(a.B, b.B))
}
