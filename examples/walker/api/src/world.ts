// The world: what the tree and the quests are. Data only.

export interface Node {
  /** How many points fill it. */
  cost: number;
  /** What has to be filled before. */
  needs: string[];
}

export const TREE: Record<string, Node> = {
  roots: { cost: 2, needs: [] },
  stamina: { cost: 3, needs: ["roots"] },
  pathfinder: { cost: 3, needs: ["roots"] },
  crown: { cost: 5, needs: ["stamina", "pathfinder"] },
};

export interface Quest {
  title: string;
  steps: number;
  /** What it awards. */
  points: number;
  needs: number[];
}

export const QUESTS: Record<number, Quest> = {
  1: { title: "Once around the block", steps: 2, points: 3, needs: [] },
  2: { title: "The river path", steps: 4, points: 5, needs: [1] },
  3: { title: "Hill repeats", steps: 3, points: 4, needs: [] },
};

/** What everybody begins with. */
export const FIRST_POINTS = 5;
