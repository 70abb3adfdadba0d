// Parley console: open pages keep up to date. htmx's extension sse connects, tries again ever later, and swaps what comes,
// by "live" below: an element whose id the page has takes its place; a row that is new goes on top, or into the bar
// "6 more" while the reader looks at something.
(() => {
  const $ = (s, n = document) => n.querySelector(s), $$ = (s, n = document) => [...n.querySelectorAll(s)];
  const on = (name, f) => document.addEventListener(name, f), now = Date.now, number = n => n.toLocaleString("en");
  const MOST = 200, SETTLE = 1500, SAY = 10000;
  let api, paused = false, broken = false, failed = 0, retry = 0, over = "", stale = false, heard = now(), moved = 0;
  let page, offset = 0; // of the hub's clock
  let held = new Map(), holding = 0, more = new Set(), many = "", news = 0, bad = 0, said = 0, saying = 0, asked, since = 0;

  const asks = () => location.hash.length > 2; // a dialog is open
  const quiet = () => {
    const u = new URL(location).searchParams;
    return !u.has("before") && !u.has("m") && scrollY < 40 && !more.size && !$("#rows [aria-selected=true]") && !asks();
  };
  // Reads the page anew; true: its main part is replaced. Where that would move something, rows take their places one by one.
  // A page with a form that somebody fills in stays as it is.
  const refresh = () => {
    if ($("#main [data-keep]") || (stale = paused || asks())) return false;
    const whole = quiet() || !$("#more");
    htmx.ajax("GET", location.href, { target: "#main", headers: { "Parley-Live": "1" },
      select: whole ? "#main" : "#rows > tr", swap: whole ? "outerHTML" : "live" });
    return whole;
  };

  // ---- rows; what is new is said politely, and not often ----
  const announce = row => {
    if (row) { news++; bad += row.matches(".isbad"); }
    if (!news || saying || paused) return;
    saying = setTimeout(() => {
      saying = 0; said = now();
      $("#said").textContent = `${news} more${bad ? `, ${bad} failed` : ""}`; news = bad = 0;
    }, Math.max(0, said + SAY - now()));
  };
  const bar = () => {
    const b = $("#more"); if (!b || paused || !more.size) return;
    b.hidden = false; b.firstElementChild.textContent = `${number(more.size)}${many} more · show them`;
  };
  const count = row => {
    if (more.has(row.id)) return;
    if (more.size < 1000) more.add(row.id); else many = "+";
    bar(); announce(row);
  };
  const fold = (rows, row) => { // three events of one request are one row
    const same = [], f = row.dataset.fold; if (!f) return;
    for (let r = rows.firstElementChild; r?.dataset.fold === f && same.length < 2; r = r.nextElementSibling) { same.push(r); if (r.dataset.folded) break; }
    const n = 1 + same.reduce((a, r) => a + +(r.dataset.folded || 1), 0);
    if (n < 3) return;
    same.forEach(r => r.remove()); row.dataset.folded = n; $(".fold", row).textContent = " ×" + n;
  };
  const arrive = row => {
    const rows = $("#rows"), at = +row.dataset.at, f = row.dataset.fold;
    if (f && $$("#rows [data-folded]").some(r => r.dataset.fold === f && r.dataset.at >= at)) return; // it is one of those
    if (!rows && $("[data-empty]") && quiet()) return refresh();
    if (rows?.dataset.full !== undefined && at < rows.lastElementChild?.dataset.at) return; // on an older page
    if (!rows || !quiet()) return count(row);
    const top = rows.firstElementChild, below = [...rows.children].find(r => r.dataset.at <= at); // many may write at once
    row.classList.add("isnew");
    if (below === top) { fold(rows, row); rows.prepend(row); } else rows.insertBefore(row, below || null);
    htmx.process(row);
    setTimeout(() => row.classList.remove("isnew"), 4000);
    while (rows.childElementCount > MOST) rows.lastElementChild.remove();
    $("[data-shown]").textContent = number($$("[data-row]", rows).length);
    announce(row);
  };
  const replace = (old, row) => {
    const f = document.activeElement, had = old.contains(f);
    if (old.ariaSelected) row.ariaSelected = "true";
    if (old.outerHTML === row.outerHTML) return;
    old.replaceWith(row); htmx.process(row);
    if (had) (f === old ? row : $(`[href="${f.getAttribute("href")}"]`, row) || $("a, button", row))?.focus({ preventScroll: true });
  };
  const known = e => e.id && document.getElementById(e.id), isNew = e => e.dataset.row && e.dataset.gone === undefined;
  // Nothing moves under a pointer on its way to a row, nor while paused: what comes is held.
  const release = () => {
    const wait = moved + SETTLE - now(), all = [...held.values()];
    holding = 0;
    if (paused) return;
    if (wait > 0) { holding = setTimeout(release, wait); return; }
    held.clear();
    for (const e of all) { const old = known(e); if (old) replace(old, e); else if (isNew(e)) arrive(e); }
  };
  htmx.defineExtension("live", {
    init: a => { api = a; },
    handleSwap: (style, target, fragment) => {
      if (style !== "live") return false;
      heard = now();
      for (const e of [...fragment.children]) {
        if (known(e) || !paused && held.size < MOST) held.set(e.id, e); else if (isNew(e)) count(e);
      }
      if (!holding) release();
      return true;
    },
  });
  on("pointermove", e => { if (e.target.closest?.("#rows")) moved = now(); });

  // ---- the stream ----
  const silent = () => {
    const b = $("#silent"), say = (s, text) => { $(s, b).textContent = text; }; if (!broken) return;
    b.hidden = false;
    say("[data-for]", over || `The hub has not answered for ${(now() - heard) / 1000 | 0} s.`);
    say("[data-of]", new Date(heard + offset).toISOString().slice(11, 19));
    say("[data-next]", over ? "" : `Trying again by itself, next in ${Math.max(0, Math.ceil((retry - now()) / 1000))} s.`);
  };
  const button = () => {
    const b = $("[data-live]");
    b.hidden = false; b.ariaPressed = !paused; b.classList.toggle("off", paused || broken);
    $("span", b).textContent = paused ? "Paused" : over ? "Ended" : broken ? "Not live" : "Live";
  };
  // The seconds of the banner count on without a word.
  const fall = text => { if (!broken) $("#said").textContent = text; broken = true; silent(); button(); };
  const close = () => { const e = $("#stream"); if (e) api.getInternalData(e).sseEventSource?.close(); return e; };
  const open = () => { const e = close(), n = e?.cloneNode(); if (n) { e.replaceWith(n); htmx.process(n); } };
  htmx.createEventSource = url => {
    const s = new EventSource(url);
    s.addEventListener("error", () => s.close()); // else the browser tries again, without patience
    s.addEventListener("end", e => { s.close(); over = e.data || "The session has ended."; fall(over); });
    if (over || document.hidden) s.close(); // a browser allows six connections to a host
    return s;
  };
  on("htmx:sseError", () => {
    failed = Math.min(failed * 2 || 1, 128); retry = now() + 500 * failed; // as the extension does
    fall("The hub does not answer");
  });
  on("htmx:sseOpen", () => {
    heard = now(); failed = 0; $("#silent").hidden = true;
    if (broken) { broken = false; button(); refresh(); }
  });
  on("click", e => {
    const at = s => e.target.closest(s);
    if (at("[data-live]")) { paused = !paused; button(); release(); bar(); announce(); stale && refresh(); }
    if (at("#more")) scrollTo(0, 0);
    if (at("[data-now-link]")) { e.preventDefault(); over ? location.reload() : open(); }
    if (at("[data-stop]")) { e.preventDefault(); if (asked) htmx.trigger(asked, "htmx:abort"); }
  });
  on("visibilitychange", () => { document.hidden ? close() : refresh() || open(); });
  addEventListener("hashchange", () => stale && refresh());
  addEventListener("pagehide", close);
  addEventListener("pageshow", e => e.persisted && location.reload());

  // ---- pages that are swapped, and times ----
  const turn = () => {
    if (page === $("#main")) return;
    page = $("#main"); offset = Date.parse(page.dataset.now) - now();
    more.clear(); held.clear(); many = ""; failed = 0;
  };
  { // a step back while the page loaded has changed its address
    const s = history.state, at = [...location.pathname + location.search];
    const h = at.reduce((h, c) => h * 31 + c.charCodeAt() | 0, 0), again = !s?.again && h != ($("#main").dataset.page ?? h);
    history.replaceState({ ...s, again }, "");
    if (again) location.reload();
  }
  on("htmx:afterSwap", turn);
  on("htmx:beforeSwap", e => { // the reader is on another page by now
    const c = e.detail.requestConfig, page = url => new URL(url, location).href.split("#")[0];
    if (c.headers["Parley-Live"] && page(c.path) !== page("")) e.detail.shouldSwap = false;
  });
  on("htmx:beforeRequest", e => { asked = e.detail.elt; since = now(); });
  on("htmx:afterRequest", e => { if (e.detail.elt === asked) asked = null; });
  on("htmx:sendError", () => { if (!broken) open(); });
  const ago = s => s < 1 ? "now" : s < 60 ? `${s} s` : s < 3600 ? `${s / 60 | 0} min` : s < 172800 ? `${s / 3600 | 0} h` : `${s / 86400 | 0} days`;
  setInterval(() => {
    silent();
    if (asked) $("#loading [data-seconds]").textContent = ago((now() - since) / 1000 | 0);
    if (document.hidden || paused || broken) return;
    for (const t of $$("tr time + small:not(:has(*)), [data-ago], [data-age]")) {
      const at = t.dataset.ago, s = ago((now() + offset - Date.parse(at || t.dataset.age || t.previousElementSibling.dateTime)) / 1000 | 0);
      const text = at && s !== "now" ? s + " ago" : s; if (t.textContent !== text) t.textContent = text;
    }
  }, 1000);

  turn(); button(); open(); // htmx has looked at the page before it knew of this extension
})();
