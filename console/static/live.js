// Parley console: open pages keep up to date. The stream of a page has elements: one whose id the page has takes its
// place; a row that is new goes on top, or into the bar "6 more" while the reader looks at something.
(() => {
  const $ = (s, n = document) => n.querySelector(s), $$ = (s, n = document) => [...n.querySelectorAll(s)];
  const MOST = 200, SETTLE = 1500, SAY = 10000;
  let source, url = "", paused = false, broken = 0, failed = 0, retry = 0, timer = 0, over = false, heard = Date.now(), moved = 0;
  let page, offset = 0; // between the hub's clock and the browser's
  let held = [], holding = 0, more = new Set(), many = false, news = 0, bad = 0, said = 0, saying = 0;

  const main = () => $("#main");
  // A page with a form that somebody fills in stays as it is: only its frame is kept up to date, by the stream.
  const refresh = () => $("#main [data-keep]") || htmx.ajax("GET", location.href, { target: "#main", select: "#main", swap: "outerHTML", headers: { "Parley-Live": "1" } });

  // ---- what is said: politely, and not often ----
  const announce = () => {
    if (!news || saying) return;
    saying = setTimeout(() => {
      saying = 0; said = Date.now();
      $("#said").textContent = `${news} more${bad ? `, ${bad} failed` : ""}`; news = bad = 0;
    }, Math.max(0, said + SAY - Date.now()));
  };

  // ---- rows ----
  const quiet = () => {
    const u = new URL(location).searchParams;
    return !u.has("before") && !u.has("m") && scrollY < 40 && !more.size && !$("#rows [aria-selected=true]") && !location.hash.slice(2);
  };
  const bar = id => {
    if (more.size < 1000) more.add(id); else many = true;
    const b = $("#more"); if (!b) return;
    b.hidden = false; b.firstElementChild.textContent = `${more.size.toLocaleString("en")}${many ? "+" : ""} more · show them`;
  };
  const fold = (rows, row) => { // events of one request are one row from the third on
    const same = [], f = row.dataset.fold; if (!f) return;
    for (let r = rows.firstElementChild; r && r.dataset.fold === f && same.length < 2; r = r.nextElementSibling) { same.push(r); if (r.dataset.folded) break; }
    const n = 1 + same.reduce((a, r) => a + Number(r.dataset.folded || 1), 0);
    if (n < 3) return;
    same.forEach(r => r.remove()); row.dataset.folded = n; $(".fold", row).textContent = " ×" + n;
  };
  const insert = row => {
    const rows = $("#rows"); if (!rows) return;
    fold(rows, row); row.classList.add("isnew"); rows.prepend(row); htmx.process(row);
    setTimeout(() => row.classList.remove("isnew"), 4000);
    while (rows.childElementCount > MOST) rows.lastElementChild.remove();
    const n = $("[data-shown]"); if (n) n.textContent = $$("[data-row]", rows).length.toLocaleString("en");
  };
  const arrive = row => {
    const rows = $("#rows"), top = rows?.firstElementChild, low = rows?.lastElementChild, at = Number(row.dataset.at);
    if (row.dataset.gone !== undefined || more.has(row.id)) return;
    if (!rows) { if ($("[data-empty]") && quiet()) refresh(); else bar(row.id); return; }
    if (rows.dataset.full !== undefined && low?.dataset.at && at < Number(low.dataset.at)) return; // on an older page
    news++; if (row.classList.contains("isbad")) bad++;
    if (!quiet() || top && at < Number(top.dataset.at)) bar(row.id); else insert(row);
    announce();
  };
  const replace = (old, now) => {
    const focus = old.contains(document.activeElement);
    if (old.hasAttribute("aria-selected")) now.setAttribute("aria-selected", "true");
    if (old.outerHTML === now.outerHTML) return;
    old.replaceWith(now); htmx.process(now);
    if (focus) (now.matches("a, button, [tabindex]") ? now : $("a, button", now))?.focus({ preventScroll: true });
  };
  const take = html => {
    const t = document.createElement("template"); t.innerHTML = html;
    for (const e of [...t.content.children]) {
      const old = e.id && document.getElementById(e.id);
      if (e.matches("tr.open")) { if (old) replace(old, e); continue; }
      if (old) replace(old, e); else if (e.dataset.row) arrive(e);
    }
  };
  // Rows do not move under a pointer on its way to one.
  const settle = () => { holding = 0; const all = held; held = []; all.forEach(take); };
  const hold = html => {
    const wait = moved + SETTLE - Date.now();
    if (wait <= 0 && !holding) return take(html);
    held.push(html); if (held.length > 40) held.shift();
    holding ||= setTimeout(settle, Math.max(wait, 0));
  };
  document.addEventListener("pointermove", e => { if (e.target.closest?.("#rows")) moved = Date.now(); }, { passive: true });

  // ---- the stream ----
  const silent = () => {
    const b = $("#silent"); if (!b || !broken) return;
    const s = Math.round((Date.now() - heard) / 1000), next = Math.max(0, Math.ceil((retry - Date.now()) / 1000));
    b.hidden = false;
    $("[data-for]", b).textContent = over || `The hub has not answered for ${s} s.`;
    $("[data-of]", b).textContent = new Date(heard + offset).toISOString().slice(11, 19);
    $("[data-next]", b).textContent = over ? "" : `Trying again by itself, next in ${next} s.`;
  };
  // Said once: the seconds of the banner count on without a word.
  const fall = text => { if (!broken) { broken = Date.now(); $("#said").textContent = text; } };
  const lost = () => {
    close(); fall("The hub does not answer");
    failed = Math.min(failed + 1, 4); retry = Date.now() + 1000 * 2 ** failed;
    clearTimeout(timer); timer = setTimeout(open, retry - Date.now()); silent(); button();
  };
  const found = () => {
    heard = Date.now(); failed = 0; $("#silent").hidden = true;
    if (broken) { broken = 0; button(); refresh(); } // what was missed is on the page anew
  };
  const close = () => { source?.close(); source = null; };
  const open = () => {
    clearTimeout(timer); close();
    const path = main()?.dataset.stream;
    if (!path || paused || document.hidden || over) return;
    const s = source = new EventSource(url = path);
    s.onopen = found;
    s.onerror = () => { if (s === source) lost(); };
    s.addEventListener("html", e => { heard = Date.now(); hold(e.data); });
    s.addEventListener("end", e => { over = e.data || "The session has ended."; close(); fall(over); silent(); button(); });
  };

  const button = () => {
    const b = $("[data-live]"); if (!b) return;
    b.hidden = false; b.setAttribute("aria-pressed", String(!paused)); b.classList.toggle("off", Boolean(paused || broken));
    $("span", b).textContent = paused ? "Paused" : over ? "Ended" : broken ? "Not live" : "Live";
  };
  document.addEventListener("click", e => {
    if (e.target.closest("[data-live]")) {
      paused = !paused; button();
      if (paused) close(); else { open(); refresh(); }
    }
    if (e.target.closest("#more")) scrollTo(0, 0);
    if (e.target.closest("[data-now-link]")) { e.preventDefault(); over ? location.reload() : open(); }
    const stop = e.target.closest("[data-stop]");
    if (stop) { e.preventDefault(); if (asked) htmx.trigger(asked, "htmx:abort"); }
  });
  // A browser allows six connections to a host: hidden pages give theirs back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close(); else if (!paused && !over && url) { refresh(); open(); }
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", e => { if (e.persisted) location.reload(); });

  // ---- pages that are swapped ----
  let asked, since = 0;
  document.addEventListener("htmx:beforeRequest", e => { asked = e.detail.elt; since = Date.now(); });
  document.addEventListener("htmx:afterRequest", e => { if (e.detail.elt === asked) asked = null; });
  document.addEventListener("htmx:sendError", () => { if (!broken) lost(); });
  document.addEventListener("htmx:afterSwap", () => {
    more.clear(); many = false; held = [];
    if (main()?.dataset.stream !== url) open();
  });

  // ---- times ----
  const ago = s => s < 1 ? "now" : s < 60 ? `${s} s` : s < 3600 ? `${s / 60 | 0} min` : s < 172800 ? `${s / 3600 | 0} h` : `${s / 86400 | 0} days`;
  setInterval(() => {
    silent();
    if (asked) { const n = $("#loading [data-seconds]"); if (n) n.textContent = ago(Math.round((Date.now() - since) / 1000)); }
    if (document.hidden || paused || broken) return;
    if (page !== main()) { page = main(); offset = Date.parse(page.dataset.now) - Date.now(); }
    for (const t of $$("#rows time + small")) {
      const s = ago(Math.max(0, Math.floor((Date.now() + offset - Date.parse(t.previousElementSibling.dateTime)) / 1000)));
      if (t.textContent !== s) t.textContent = s;
    }
  }, 1000);

  button(); open();
})();
