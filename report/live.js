"use strict";
// Requests the page again and again, and shows each new page. Each request waits until
// the page has changed. Folds that the reader has opened stay open, and the focus is
// kept.
(() => {
	const pause = 1000, gone = document.getElementById("gone");
	let tag = "", last = new Date();
	const tables = () => [...document.querySelectorAll(".table")], folds = () => [...document.querySelectorAll("details")];
	const show = text => {
		const began = performance.now();
		const next = new DOMParser().parseFromString(text, "text/html");
		const open = new Set(folds().filter(e => e.open).map(e => e.id)), focus = tables().indexOf(document.activeElement);
		document.title = next.title;
		document.querySelector("main").replaceWith(next.querySelector("main"));
		folds().forEach(e => { e.open = open.has(e.id); });
		tables()[focus]?.focus({ preventScroll: true });
		document.body.getBoundingClientRect(); // layout is part of the time measured
		document.documentElement.dataset.redrawn = (performance.now() - began).toFixed(1);
	};
	const ask = async () => {
		try {
			const got = await fetch(location.href, { cache: "no-store", headers: tag ? { "If-None-Match": tag, Prefer: "wait" } : {} });
			if (got.status === 200) {
				tag = got.headers.get("ETag");
				show(await got.text());
			} else if (got.status !== 304) {
				throw new Error(got.statusText);
			}
			last = new Date();
			gone.hidden = true;
		} catch (error) {
			const runs = document.getElementById("outcome").classList.contains("info");
			gone.textContent = runs ? "headroom no longer answers: it was killed, or cannot be reached. This was the state of the run at " + last.toLocaleTimeString() + "."
				: "The run has ended: this page no longer changes.";
			gone.hidden = false;
		}
		setTimeout(ask, gone.hidden ? pause : 10 * pause);
	};
	// The page shows the answer when it is there.
	document.addEventListener("click", event => {
		if (event.target.id === "ask") {
			event.target.disabled = true;
			fetch("account" + location.search, { method: "POST" }).catch(() => {});
		}
	});
	ask();
})();
