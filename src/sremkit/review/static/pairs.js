// The rows of the current filter, and the details of those that were read. Details come in pages from the server.

import { readPairs } from "./api.js";

const PAGE = 60;

export class Pairs {
  constructor() {
    this.rows = []; // row numbers in the order of the filter
    this.total = 0;
    this.position = 0;
    this.details = new Map(); // by row
    this.loading = new Map(); // by page
  }

  reset({ rows, total }) {
    this.rows = rows;
    this.total = total;
    this.position = 0;
    this.details.clear();
    this.loading.clear();
  }

  get length() { return this.rows.length; }

  at(position) { return this.details.get(this.rows[position]); }

  /** Read the pages of the positions from `first` to `last`; resolves when all are there. */
  async load(first, last) {
    const waiting = [];
    const end = Math.min(last, this.length - 1);
    for (let page = Math.floor(Math.max(first, 0) / PAGE); page * PAGE <= end; page += 1) {
      if (!this.loading.has(page)) this.loading.set(page, this.loadPage(page));
      waiting.push(this.loading.get(page));
    }
    await Promise.all(waiting);
  }

  async loadPage(page) {
    const all = this.rows;
    const rows = all.slice(page * PAGE, (page + 1) * PAGE);
    try {
      const found = await readPairs(rows);
      if (all === this.rows) for (const pair of found) this.details.set(pair.row, pair);
    } catch (problem) {
      this.loading.delete(page);
      throw problem;
    }
  }

  setDecision(row, decision) {
    const pair = this.details.get(row);
    if (pair) pair.decision = decision;
  }
}
